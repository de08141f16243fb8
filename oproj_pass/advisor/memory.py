"""What sharding frees on a rank, and what it takes: weights exactly, buffers from the captured sizes."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from oproj_pass.advisor.sites import Site
from oproj_pass.advisor.workload import Strategy

__all__ = ["Memory", "buffer_nbytes", "memory_of"]


@dataclass(frozen=True)
class Memory:
    """Bytes on one of ``size`` ranks.

    ``saved_nbytes``: weights freed. ``communicator_nbytes``: fixed, whatever the model. ``buffer_nbytes``:
    the exchange's buffers at the largest captured size; layers, and the graphs of all sizes, share one pool.
    """

    size: int
    full_nbytes: int
    saved_nbytes: int
    communicator_nbytes: int
    buffer_nbytes: int

    @property
    def net_of_fixed_nbytes(self) -> int:
        """Saved, less the communicator."""
        return self.saved_nbytes - self.communicator_nbytes

    @property
    def net_nbytes(self) -> int:
        """Saved, less everything that sharding adds; negative below the break-even."""
        return self.net_of_fixed_nbytes - self.buffer_nbytes


def memory_of(
    sites: Iterable[Site], strategy: Strategy, *, size: int, tokens: int, communicator_nbytes: int
) -> Memory:
    """The memory of ``sites`` over ``size`` ranks; ``tokens``: the largest captured size."""
    sites = list(sites)
    return Memory(
        size=size,
        full_nbytes=sum(site.nbytes for site in sites if not site.is_shared),
        saved_nbytes=sum(site.saved_nbytes(size) for site in sites),
        communicator_nbytes=communicator_nbytes,
        buffer_nbytes=max((buffer_nbytes(site, strategy, size, tokens) for site in sites), default=0),
    )


def buffer_nbytes(site: Site, strategy: Strategy, size: int, tokens: int) -> int:
    """The most that the exchange of one site holds at once, beyond the unsharded result.

    Each collective has its input and its output; the product lies between the last output and the next input.
    """
    transfers = strategy.work(site.shape, tokens, size).transfers
    pairs = [
        (transfer.nbytes, transfer.nbytes // transfer.size)
        if transfer.collective == "reduce_scatter"
        else (transfer.nbytes // transfer.size, transfer.nbytes)
        if transfer.collective == "all_gather"
        else (transfer.nbytes, transfer.nbytes)
        for transfer in transfers
    ]
    held = [sum(pair) for pair in pairs]
    held += [before[1] + after[0] for before, after in itertools.pairwise(pairs)]
    result = tokens * site.shape.out_features * site.shape.partial_itemsize
    return max(held, default=0) - result
