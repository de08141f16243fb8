"""Which rows of a prefill batch each context-parallel rank holds, and how the rows come back in order.

Decides the layout as plain index lists. Moving the rows, and gathering them, is the caller's. A split is a
plan for one batch: shard with it once and restore with it once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from oproj_pass.capture.checks import require_int
from oproj_pass.capture.chunks import largest_share, rank_chunks, rank_share
from oproj_pass.errors import ConfigError

Row = TypeVar("Row")


@dataclass(frozen=True)
class ContextSplit:
    """The rows of a batch of sequences over `pcp_size` ranks, by the rule of `chunks.py`.

    A rank's sequences follow one another. Ranks that hold less than the largest share are padded to it at the
    end, so that all hold as many rows as the step brings to dispatch.

    Raises:
        ConfigError: P or a length is below 1.
    """

    pcp_size: int
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        require_int("pcp_size", self.pcp_size, minimum=1)
        for length in self.lengths:
            require_int("lengths", length, minimum=1)

    @property
    def local_total(self) -> int:
        """Rows of every rank, padding included."""
        return largest_share(self.lengths, self.pcp_size)

    def local_lengths(self, rank: int) -> tuple[int, ...]:
        """Rows of each sequence on `rank`, the padding counted to the last one.

        Attention kernels want these: they size their buffers by lengths that add up to the rows.
        """
        self._check_rank(rank)
        held = [rank_share(length, self.pcp_size, rank) for length in self.lengths]
        return (*held[:-1], held[-1] + self.local_total - sum(held)) if held else ()

    def sources(self, rank: int) -> tuple[int | None, ...]:
        """For each row of `rank`, its row in the whole batch; None is padding."""
        self._check_rank(rank)
        starts = accumulate(self.lengths, initial=0)
        held = [
            start + position
            for start, length in zip(starts, self.lengths, strict=False)
            for chunk in rank_chunks(length, self.pcp_size, rank)
            for position in chunk
        ]
        return (*held, *[None] * (self.local_total - len(held)))

    def restore_indices(self) -> tuple[int, ...]:
        """For each row of the whole batch, its row among all ranks' rows gathered in rank order."""
        indices, local_total = [0] * sum(self.lengths), self.local_total
        for rank in range(self.pcp_size):
            for row, source in enumerate(self.sources(rank)):
                if source is not None:
                    indices[source] = rank * local_total + row
        return tuple(indices)

    def shard(self, rows: Sequence[Row], rank: int, pad: Row) -> list[Row]:
        """The rows of `rank`, with `pad` where it holds none.

        Raises:
            ConfigError: `rows` is not the whole batch, as when it is sharded twice, or there is no such rank.
        """
        self._check_rows(rows, sum(self.lengths), "the whole batch")
        return [pad if source is None else rows[source] for source in self.sources(rank)]

    def restore(self, gathered: Sequence[Row]) -> list[Row]:
        """The whole batch in its own order and length, from all ranks' rows gathered in rank order.

        Raises:
            ConfigError: `gathered` has another number of rows, as when it is restored twice.
        """
        self._check_rows(gathered, self.pcp_size * self.local_total, f"{self.pcp_size} ranks' gathered rows")
        return [gathered[index] for index in self.restore_indices()]

    def _check_rank(self, rank: int) -> None:
        if require_int("rank", rank, minimum=0) >= self.pcp_size:
            raise ConfigError(f"rank={rank} must be below pcp_size={self.pcp_size}")

    def _check_rows(self, rows: Sequence[Row], expected: int, what: str) -> None:
        if len(rows) != expected:
            raise ConfigError(
                f"{len(rows)} rows given, but {what} for lengths {list(self.lengths)} has {expected}. "
                f"Shard and restore a batch exactly once each"
            )
