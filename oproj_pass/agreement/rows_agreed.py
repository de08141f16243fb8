"""Lets whoever has agreed on a step's row counts say so, for compiled graphs not to compare them again.

A statement names its ranks and holds inside its ``with``, in one thread. Graphs compare wherever nobody made
one that holds for all their ranks.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_agreed: ContextVar[frozenset[int]] = ContextVar("ranks_with_equal_rows", default=frozenset())


@contextmanager
def rows_agreed(ranks: Collection[int]) -> Iterator[None]:
    """Call compiled graphs inside with row counts that are known to be equal on all of these global ranks."""
    token = _agreed.set(frozenset(ranks))
    try:
        yield
    finally:
        _agreed.reset(token)


def are_rows_agreed(ranks: Collection[int]) -> bool:
    """Whether the row counts of this call are known to be equal on all of these global ranks."""
    return _agreed.get().issuperset(ranks)
