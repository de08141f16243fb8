"""Which rows of a prefill batch each context-parallel rank holds, and how the rows come back in order.

Decides the layout as plain index lists. Moving the rows, and gathering them, is the caller's. A split is a
plan for one batch: shard with it once and restore with it once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from oproj_pass.capture.checks import require_int
from oproj_pass.errors import ConfigError

Row = TypeVar("Row")


@dataclass(frozen=True)
class ContextSplit:
    """The rows of a batch of sequences over `pcp_size` ranks.

    A sequence of at least 2P tokens is padded to 2P equal chunks and rank r holds chunks r and 2P - 1 - r, so
    that causal attention costs every rank the same. A shorter one has too few tokens for that: it is cut
    plainly into P pieces of ceil(L / P), in rank order. Either way every rank holds equally many rows of a
    sequence, with padding inside the sequence, and a rank's sequences follow one another.

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
    def local_lengths(self) -> tuple[int, ...]:
        """Rows of each sequence on every rank, padding included; attention needs these, not the real ones."""
        return tuple(len(self._positions(length, 0)) for length in self.lengths)

    @property
    def local_total(self) -> int:
        """Rows of every rank, padding included."""
        return sum(self.local_lengths)

    def sources(self, rank: int) -> tuple[int | None, ...]:
        """For each row of `rank`, its row in the whole batch; None is padding."""
        self._check_rank(rank)
        starts = accumulate(self.lengths, initial=0)
        return tuple(
            start + position if position < length else None
            for start, length in zip(starts, self.lengths, strict=False)
            for position in self._positions(length, rank)
        )

    def restore_indices(self) -> tuple[int, ...]:
        """For each row of the whole batch, its row among all ranks' rows gathered in rank order."""
        indices = [0] * sum(self.lengths)
        for rank in range(self.pcp_size):
            for row, source in enumerate(self.sources(rank)):
                if source is not None:
                    indices[source] = rank * self.local_total + row
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

    def _positions(self, length: int, rank: int) -> list[int]:
        """Positions in its sequence of the rows that `rank` holds; at or past `length` they are padding."""
        ranks = self.pcp_size
        if ranks == 1 or length < 2 * ranks:
            piece = -(-length // ranks)
            return list(range(rank * piece, (rank + 1) * piece))
        chunk = -(-length // (2 * ranks))
        owned = (rank, 2 * ranks - 1 - rank)
        return [position for c in owned for position in range(c * chunk, (c + 1) * chunk)]

    def _check_rank(self, rank: int) -> None:
        if require_int("rank", rank, minimum=0) >= self.pcp_size:
            raise ConfigError(f"rank={rank} must be below pcp_size={self.pcp_size}")

    def _check_rows(self, rows: Sequence[Row], expected: int, what: str) -> None:
        if len(rows) != expected:
            raise ConfigError(
                f"{len(rows)} rows given, but {what} for lengths {list(self.lengths)} has {expected}. "
                f"Shard and restore a batch exactly once each"
            )
