"""Bytes that a group of N ranks saves for one projection; what it sends is its strategy's answer."""

COMMUNICATION_BUFFER_NBYTES = int(0.42 * 2**30)
"""What the exchange's communicator holds on a rank, whatever the model: HCCL's two default buffers."""


def saved_nbytes(nbytes: int, size: int) -> int:
    """Bytes freed on each rank by keeping 1/N of a weight of ``nbytes``."""
    return nbytes - nbytes // size


def break_even_layers(layer_nbytes: int, size: int) -> float:
    """Layers of ``layer_nbytes`` from which sharding over N ranks frees more than its buffers take."""
    return COMMUNICATION_BUFFER_NBYTES / saved_nbytes(layer_nbytes, size)
