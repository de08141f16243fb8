"""Which rows of a prefill batch each context-parallel rank holds, and how the rows come back in order.

Decides the layout as plain index lists. Moving the rows, and gathering them, is the caller's. A split is a
plan for one batch: shard with it once and restore with it once, which the types of `context_rows.py` hold to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from oproj_pass.capture.checks import require_int
from oproj_pass.capture.chunks import largest_share, rank_chunks, rank_share
from oproj_pass.capture.context_rows import LocalRows, Row, WholeRows
from oproj_pass.errors import ConfigError


@dataclass(frozen=True)
class ContextSplit:
    """The rows of a batch of sequences over `pcp_size` ranks, by the rule of `chunks.py`.

    A rank's sequences follow one another, and all ranks hold equally many rows. Ranks that hold less are
    padded at the end, so that all hold as many rows as the step brings to dispatch. `pads_each_sequence`
    gives every sequence equally many rows on all ranks instead, as kernels want that gather keys by
    themselves: that may be more rows than the step brings to dispatch.

    Raises:
        ConfigError: P or a length is below 1.
    """

    pcp_size: int
    lengths: tuple[int, ...]
    pads_each_sequence: bool = False

    def __post_init__(self) -> None:
        require_int("pcp_size", self.pcp_size, minimum=1)
        for length in self.lengths:
            require_int("lengths", length, minimum=1)

    @property
    def local_total(self) -> int:
        """Rows of every rank, padding included."""
        if self.pads_each_sequence:
            return sum(largest_share([length], self.pcp_size) for length in self.lengths)
        return largest_share(self.lengths, self.pcp_size)

    def real_lengths(self, rank: int) -> tuple[int, ...]:
        """Rows of each sequence that `rank` holds, without padding."""
        self.require_rank(rank)
        return tuple(rank_share(length, self.pcp_size, rank) for length in self.lengths)

    def local_lengths(self, rank: int) -> tuple[int, ...]:
        """Rows of each sequence on `rank`, with their padding; what pads the end counts to the last one.

        Attention kernels want these: they size their buffers by lengths that add up to the rows.
        """
        held = self.real_lengths(rank)
        if self.pads_each_sequence:
            return tuple(largest_share([length], self.pcp_size) for length in self.lengths)
        return (*held[:-1], held[-1] + self.local_total - sum(held)) if held else ()

    def sources(self, rank: int) -> tuple[int | None, ...]:
        """For each row of `rank`, its row in the whole batch; None is padding."""
        starts = accumulate(self.lengths, initial=0)
        rows: list[int | None] = []
        for start, length, padded in zip(starts, self.lengths, self.local_lengths(rank), strict=False):
            chunks = rank_chunks(length, self.pcp_size, rank)
            held = [start + position for chunk in chunks for position in chunk]
            rows += [*held, *[None] * (padded - len(held))]
        return tuple(rows)

    def restore_indices(self) -> tuple[int, ...]:
        """For each row of the whole batch, its row among all ranks' rows gathered in rank order."""
        indices, local_total = [0] * sum(self.lengths), self.local_total
        for rank in range(self.pcp_size):
            for row, source in enumerate(self.sources(rank)):
                if source is not None:
                    indices[source] = rank * local_total + row
        return tuple(indices)

    def shard(self, rows: Sequence[Row], rank: int, pad: Row) -> LocalRows[Row]:
        """The rows of `rank`, with `pad` where it holds none.

        Raises:
            ConfigError: `rows` were sharded already or are not the whole batch, or there is no such rank.
        """
        if isinstance(rows, LocalRows):
            raise ConfigError(f"these are rank {rows.rank}'s rows already. Shard a batch exactly once")
        if len(rows) != sum(self.lengths):
            raise ConfigError(
                f"{len(rows)} rows given, but the whole batch of lengths {list(self.lengths)} has "
                f"{sum(self.lengths)}"
            )
        held = (pad if source is None else rows[source] for source in self.sources(rank))
        return LocalRows(tuple(held), rank, self.lengths)

    def restore(self, parts: Sequence[LocalRows[Row]]) -> WholeRows[Row]:
        """The whole batch in its own order and length, from the rows of all ranks in rank order.

        Raises:
            ConfigError: `parts` are not the local rows of every rank of this batch, in rank order.
        """
        if isinstance(parts, WholeRows):
            raise ConfigError("these are all rows of the batch already. Restore a batch exactly once")
        found = [
            (part.rank, part.lengths, len(part)) if isinstance(part, LocalRows) else None for part in parts
        ]
        if found != [(rank, self.lengths, self.local_total) for rank in range(self.pcp_size)]:
            listed = [what and f"{what[2]} rows of rank {what[0]} of {list(what[1])}" for what in found]
            raise ConfigError(
                f"restoring lengths {list(self.lengths)} needs the {self.local_total} local rows of each of "
                f"ranks 0 to {self.pcp_size - 1}, in this order; found {listed}"
            )
        gathered = [row for part in parts for row in part]
        return WholeRows(tuple(gathered[index] for index in self.restore_indices()))

    def require_rank(self, rank: int) -> None:
        """Raise `ConfigError` unless there is such a rank."""
        if require_int("rank", rank, minimum=0) >= self.pcp_size:
            raise ConfigError(f"rank={rank} must be below pcp_size={self.pcp_size}")
