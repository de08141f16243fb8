"""Lets whoever brings the full values of released weights serve every read of them, in one context."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

from oproj_pass.weights.shard import Shard

FullValues = Callable[[Sequence[Shard]], Sequence[Tensor]]
"""The full values of the weights that one operation reads. They hold until the next operation's."""

_serving: ContextVar[FullValues | None] = ContextVar("full_values_of_released_weights", default=None)


def serving_reads() -> FullValues | None:
    """Who serves the reads of released weights here; None: nobody, and a read is an error."""
    return _serving.get()


@contextmanager
def reads_served_by(full_values: FullValues) -> Iterator[None]:
    """Let operations inside read released weights, in the values that ``full_values`` brings."""
    token = _serving.set(full_values)
    try:
        yield
    finally:
        _serving.reset(token)
