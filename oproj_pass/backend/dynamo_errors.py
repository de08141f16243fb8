"""Lets the project's errors pass through Dynamo: neither wrapped, nor swallowed by ``suppress_errors``.

Dynamo wraps what a backend raises in ``BackendCompilerFailed``, unless it is a ``ShortenTraceback``; and with
``torch._dynamo.config.suppress_errors`` it runs the frame eager after any error but an
``UncapturedHigherOrderOpError``, which for a refusal here would mean a step that hangs its peers. So an error
travels as both, under its own type; a copy of it, in this or another process, is the plain error.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._dynamo.exc import ShortenTraceback, UncapturedHigherOrderOpError

from oproj_pass.errors import OProjError


class _ThroughDynamo(ShortenTraceback, UncapturedHigherOrderOpError):
    """An error that Dynamo raises as it is; ``plain`` is its type outside Dynamo."""

    plain: type[OProjError]

    def __init__(self, *args: Any) -> None:
        Exception.__init__(self, *args)
        self._own_args = args  # Dynamo appends its hints for reporting a bug to ``args``
        self.first_useful_frame = self.frame_exec_strategy = self._torch_dynamo_tracer_output = None
        self.real_stack = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return str(self.plain(*self._own_args))

    def __reduce__(self) -> tuple[Any, ...]:
        notes = getattr(self, "__notes__", None)
        return self.plain, self._own_args, {"__notes__": notes} if notes else None


@functools.cache  # one class for each type
def _through_dynamo(kind: type[OProjError]) -> type[OProjError]:
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "plain": kind}
    return type(kind.__name__, (_ThroughDynamo, kind), names)


@contextmanager
def errors_as_they_are() -> Iterator[None]:
    """Let an ``OProjError`` raised within reach the caller of the compiled model under its own type."""
    try:
        yield
    except OProjError as error:
        kind = error.plain if isinstance(error, _ThroughDynamo) else type(error)
        raised = _through_dynamo(kind)(*error.args)  # type: ignore[arg-type]
        raise raised.with_traceback(error.__traceback__) from error.__cause__
