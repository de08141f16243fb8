"""What really ran in a call, whatever objects stand between the callable and its model.

Read from the Python calls of this thread, through the interpreter's profile hook, while capturing: which
modules ran, which tensors Dynamo's graphs were given, and which code ran eager although it was compiled once.
Frames that compile are left out: it would take time, and they run nothing.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo import eval_frame

from oproj_pass.runtime.dynamo_callback import Callback, from_stance, in_place_of, substituting

logger = logging.getLogger(__name__)

_MODULE_CALL = nn.Module._call_impl.__code__
# Dynamo calls each of its graphs through the wrapper of `torch._dynamo.disable`, which takes `args`.
_GRAPH_CALL: CodeType = torch._dynamo.disable(lambda: None).__code__  # type: ignore[no-untyped-call]


class Observation:
    """What ran, over all calls made while observing.

    ``modules``: the called ones. ``graph_weights``: the weights and buffers given to Dynamo's graphs, by id.
    ``given_up``: code that ran as it is although compiled versions of it exist.
    """

    def __init__(self) -> None:
        self.modules: dict[nn.Module, None] = {}
        self.graph_weights: dict[int, Tensor] = {}
        self.given_up: set[CodeType] = set()

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """The profile hook."""
        if event != "call":
            return
        code = frame.f_code
        if code is _MODULE_CALL:
            self.modules[frame.f_locals["self"]] = None
        elif code is _GRAPH_CALL:
            weights = (value for value in frame.f_locals["args"] if _is_stored(value))
            self.graph_weights.update((id(weight), weight) for weight in weights)
        elif eval_frame._debug_get_cache_entry_list(code):
            self.given_up.add(code)

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Add what runs inside, in this thread."""
        hook = torch.compiler.disable(self.note)  # type: ignore[no-untyped-call]  # it runs where Dynamo compiles
        prior = sys.getprofile()
        with substituting(_compile_unobserved):
            sys.setprofile(hook)
            try:
                yield
            finally:
                if sys.getprofile() is not hook:
                    logger.warning(
                        "the model replaced this thread's profile hook (sys.setprofile) while it was "
                        "captured: weights that move afterwards may go unnoticed. Capture without a profiler"
                    )
                sys.setprofile(prior)


def _is_stored(value: Any) -> bool:
    """Whether Dynamo takes ``value`` for a weight or buffer of a module."""
    return isinstance(value, nn.Parameter) or hasattr(value, "_dynamo_static_input_type")


def _compile_unobserved(callback: Callable[..., Any]) -> Callback:
    stanced = from_stance(callback)
    if not callable(stanced):
        return stanced

    def compile_frame(*args: Any, **kwargs: Any) -> Any:
        hook = sys.getprofile()
        sys.setprofile(None)
        try:
            return stanced(*args, **kwargs)
        finally:
            sys.setprofile(hook)

    return in_place_of(stanced, compile_frame)
