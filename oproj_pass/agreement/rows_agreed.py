"""Lets whoever has agreed on a step's row counts say so, for compiled graphs not to compare them again.

A statement names its ranks and holds inside its ``with``, in one thread. Graphs compare wherever nobody made
one that holds for all their ranks.
"""

from collections.abc import Collection
from contextvars import ContextVar, Token

_agreed: ContextVar[frozenset[int]] = ContextVar("ranks_with_equal_rows", default=frozenset())


class rows_agreed:  # reads as the statement that it makes
    """Call compiled graphs inside with row counts that are known to be equal on all of these global ranks.

    One statement may be made again and again, once the last ``with`` has ended: a step makes it.
    """

    def __init__(self, ranks: Collection[int]) -> None:
        self._ranks = frozenset(ranks)
        self._token: Token[frozenset[int]] | None = None

    def __enter__(self) -> None:
        self._token = _agreed.set(self._ranks)

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _agreed.reset(self._token)


def are_rows_agreed(ranks: Collection[int]) -> bool:
    """Whether the row counts of this call are known to be equal on all of these global ranks."""
    return _agreed.get().issuperset(ranks)
