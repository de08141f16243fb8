"""The rows of a step whose prefills are split over ranks and whose decodes are not: who holds which.

Prefills go by `context_split.py`. Every rank runs every decode, in front of its rows of prefills.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, compress

from oproj_pass.capture.context_split import ContextSplit
from oproj_pass.capture.pcp import dispatch_size


@dataclass(frozen=True)
class ContextBatch:
    """The requests of a step over `pcp_size` ranks, in the order of their rows.

    Attributes:
        pcp_size: P, ranks that share a prefill.
        lengths: rows of each request in this step, before any split.
        is_prefill: whether each request is a prefill (`is_prefilling`).

    Raises:
        ConfigError: P or a length is below 1, or the two sequences differ in length.
    """

    pcp_size: int
    lengths: tuple[int, ...]
    is_prefill: tuple[bool, ...]

    def __post_init__(self) -> None:
        dispatch_size(self.pcp_size, self.lengths, self.is_prefill)

    def __str__(self) -> str:
        decodes = sum(self.lengths) - sum(self._split.lengths)
        return f"prefills of {list(self._split.lengths)} rows, {decodes} rows of decodes"

    @property
    def num_tokens(self) -> int:
        """Rows of the whole batch, T: those that are sampled from and counted."""
        return sum(self.lengths)

    @property
    def local_total(self) -> int:
        """Rows that each rank brings to dispatch, those of the rank that holds most."""
        return dispatch_size(self.pcp_size, self.lengths, self.is_prefill)

    def sources(self, rank: int) -> tuple[int, ...]:
        """For each row of `rank`, its row in the whole batch; a rank that holds less than most has fewer."""
        split = [*self._rows(prefill=True)]
        held = (split[row] for row in self._split.sources(rank) if row is not None)
        return (*self._rows(prefill=False), *held)

    def restore_indices(self, rank: int, size: int) -> tuple[int, ...]:
        """For each row of the whole batch, its row among those of all ranks gathered in rank order.

        A decode's rows are those of `rank` itself. `size`: rows of every rank, with its padding.
        """
        self._split.require_rank(rank)
        others = [other for other in range(self.pcp_size) if other != rank]
        indices = [0] * self.num_tokens
        for holder in (*others, rank):
            for row, source in enumerate(self.sources(holder)):
                indices[source] = holder * size + row
        return tuple(indices)

    @cached_property
    def _split(self) -> ContextSplit:
        return ContextSplit(self.pcp_size, tuple(compress(self.lengths, self.is_prefill)))

    def _rows(self, *, prefill: bool) -> Iterator[int]:
        starts = accumulate(self.lengths, initial=0)
        for start, length, is_prefill in zip(starts, self.lengths, self.is_prefill, strict=False):
            if is_prefill is prefill:
                yield from range(start, start + length)
