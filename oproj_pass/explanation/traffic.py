"""Bytes that a group of N ranks saves and sends for one projection, as a function of its shape.

Per rank and layer, with a weight [H, K] and T tokens of its own: the all-to-all takes T rows of K features,
of which the N - 1 parts of K / N for other ranks leave the rank; the reduce-scatter takes N * T partial rows
of H features, of which the (N - 1) * T rows of other ranks' tokens leave it. A ring sends as much as a mesh.
"""

COMMUNICATION_BUFFER_NBYTES = int(0.42 * 2**30)
"""What the exchange's communicator holds on a rank, whatever the model: HCCL's two default buffers."""


def saved_nbytes(nbytes: int, size: int) -> int:
    """Bytes freed on each rank by keeping 1/N of a weight of ``nbytes``."""
    return nbytes - nbytes // size


def sent_nbytes(
    in_features: int, out_features: int, size: int, *, input_itemsize: int, partial_itemsize: int
) -> int:
    """Bytes that a rank sends for each of its tokens: K * (N-1)/N features and H * (N-1) partial sums."""
    scattered = in_features * (size - 1) // size * input_itemsize
    return scattered + out_features * (size - 1) * partial_itemsize


def break_even_layers(layer_nbytes: int, size: int) -> float:
    """Layers of ``layer_nbytes`` from which sharding over N ranks frees more than its buffers take."""
    return COMMUNICATION_BUFFER_NBYTES / saved_nbytes(layer_nbytes, size)
