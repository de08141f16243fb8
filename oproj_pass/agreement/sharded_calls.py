"""Tells who asks which sharded graphs run: each announces its groups, bytes and plan when it is called.

What runs is known here and nowhere else. From outside, a callable may hide its model behind any object, and
a weight that was not released does not show that its graph reads a part of it only.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from oproj_pass.groups import ShardGroup


@dataclass
class ShardedCalls:
    """What the sharded graphs that ran have in common.

    ``groups``: in which their ranks meet, and exchange rows. ``sent_nbytes``: what this rank sent to others,
    None where one of them does not know. ``plans``: the fingerprints of those that they are written by.
    """

    groups: set[ShardGroup] = field(default_factory=set)
    sent_nbytes: int | None = 0
    plans: set[str] = field(default_factory=set)


_calls: ContextVar[ShardedCalls | None] = ContextVar("the sharded graphs that ran", default=None)


def announce(
    groups: Iterable[ShardGroup], sent_nbytes: Callable[[], int] | None = None, plan: str = ""
) -> None:
    """A graph runs now in these groups, written by the plan of that fingerprint.

    ``sent_nbytes`` is asked for what it sends where somebody listens.
    """
    calls = _calls.get()
    if calls is None:
        return
    calls.groups.update(groups)
    calls.plans.add(plan)
    if sent_nbytes is None:
        calls.sent_nbytes = None
    elif calls.sent_nbytes is not None:
        calls.sent_nbytes += sent_nbytes()


@contextmanager
def sharded_calls() -> Iterator[ShardedCalls]:
    """The sharded graphs that run inside, in this thread; filled while they do."""
    calls = ShardedCalls()
    token = _calls.set(calls)
    try:
        yield calls
    finally:
        _calls.reset(token)
