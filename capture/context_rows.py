"""Rows of a batch as types: all of them in order, or one rank's of a split.

Their numbers may be equal (8 and 12 rows over two ranks need no padding, so that what was gathered is as long
as what was restored); their types are not, so nothing is split or restored twice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, overload

Row = TypeVar("Row")


class _Rows(Sequence[Row], Generic[Row]):
    """Reads as a sequence of its rows."""

    rows: tuple[Row, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        return self.rows[index]


@dataclass(frozen=True)
class WholeRows(_Rows[Row]):
    """All rows of a batch, in order."""

    rows: tuple[Row, ...]


@dataclass(frozen=True)
class LocalRows(_Rows[Row]):
    """The rows that `rank` holds, padding included. `lengths`: those of the batch that was split."""

    rows: tuple[Row, ...]
    rank: int
    lengths: tuple[int, ...]
