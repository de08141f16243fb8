"""Decides, for one thread, what Dynamo does with a frame that it would compile.

``torch.compiler.set_stance`` decides it for the whole process: of two runners in two threads one would put
back the other's stance, and a third thread's compilations would fail. Every compiled call asks
``_callback_from_stance``, in its own thread; there a thread may have an answer of its own.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch._dynamo import eval_frame

Callback = Callable[..., Any] | bool | None  # False: run what is compiled; None: run eager
Substitute = Callable[[Callable[..., Any]], Callback]


class _Thread(threading.local):
    """What this thread puts in the place of Dynamo's callback."""

    substitute: Substitute | None = None


thread = _Thread()
from_stance: Callable[[Callback], Callback] = eval_frame._callback_from_stance


def _from_thread(callback: Callback) -> Callback:
    if thread.substitute is None or not callable(callback):
        return from_stance(callback)
    return thread.substitute(callback)


eval_frame._callback_from_stance = _from_thread  # the same for every thread, and once: modules load once


@contextmanager
def substituting(substitute: Substitute) -> Iterator[None]:
    """In this thread, give ``substitute(callback)`` to compiled calls instead of Dynamo's own callback.

    The stance does not count then; ``from_stance`` asks for it.
    """
    prior, thread.substitute = thread.substitute, substitute
    try:
        yield
    finally:
        thread.substitute = prior


def in_place_of(callback: Callback, replacement: Callable[..., Any]) -> Callable[..., Any]:
    """``replacement``, for which code that was compiled under ``callback`` is found."""
    replacement._torchdynamo_orig_backend = callback  # type: ignore[attr-defined]
    return replacement
