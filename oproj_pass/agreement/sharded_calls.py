"""Tells who asks which sharded graphs run: each one announces its groups whenever it is called.

What runs is known here and nowhere else. From outside, a callable may hide its model behind any object, and
a weight that was not released does not show that its graph reads a part of it only.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from oproj_pass.groups import ShardGroup

_groups: ContextVar[set[ShardGroup] | None] = ContextVar(
    "groups of the sharded graphs that ran", default=None
)


def announce(groups: Iterable[ShardGroup]) -> None:
    """A graph runs now whose ranks meet, and exchange rows, in these groups."""
    running = _groups.get()
    if running is not None:
        running.update(groups)


@contextmanager
def groups_that_run() -> Iterator[set[ShardGroup]]:
    """The groups of the sharded graphs that run inside, in this thread; filled while they do."""
    groups: set[ShardGroup] = set()
    token = _groups.set(groups)
    try:
        yield groups
    finally:
        _groups.reset(token)
