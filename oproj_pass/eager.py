"""Says why a step is running eager, for the error that refuses it.

Looks at the live Python stack and at Dynamo's own caches; decides nothing.
"""

import sys
from collections.abc import Callable, Iterator
from types import FrameType

from torch import nn
from torch._dynamo import config as dynamo_config
from torch._dynamo import eval_frame
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from oproj_pass.guard_failures import failed_guards, number_remedy

_INTERNAL = {"torch", "oproj_pass", "contextlib", "functools"}


def eager_cause() -> str:
    """One sentence: what made the code that calls this run outside a compiled graph, and the remedy."""
    frames = list(user_frames_in_compiled_call())
    if not _is_within(_is_compile_wrapper):
        return (
            "the model was called outside torch.compile. Call the compiled model; a method that calls the "
            'model itself (generate) goes past it: compile in place, model.compile(backend="oproj_npu").'
        )
    if (stance := eval_frame._stance.stance) != "default":
        return f"torch.compiler.set_stance({stance!r}) is in force. Reset the stance to 'default'."
    if modes := _get_current_dispatch_mode_stack():
        return f"{type(modes[-1]).__name__} is active, which turns compiled code off. Leave that mode first."
    for frame in frames:
        limit = dynamo_config.recompile_limit
        if len(eval_frame._debug_get_cache_entry_list(frame.f_code)) >= limit:
            return (
                f"Dynamo's recompile limit ({limit}) is reached for {_describe(frame)}. "
                f"{_recompile_remedy(frame)}."
            )
    where = _describe(frames[0]) if frames else "the model"
    return (
        f"a graph break left {where} outside the graph. TORCH_LOGS=graph_breaks shows the break; remove it."
    )


def _recompile_remedy(frame: FrameType) -> str:
    guards = failed_guards(frame.f_code, frame.f_locals)
    return number_remedy(guards) or (
        f"It last failed guard {guards[0] if guards else '(unknown)'}. If that is a shape, capture fewer of "
        "them or mark the row dimension dynamic; or raise torch._dynamo.config.recompile_limit"
    )


def user_frames_in_compiled_call() -> Iterator[FrameType]:
    """Python frames between here and the innermost compiled call, torch's own left out; innermost first.

    Empty outside a compiled call, and while Dynamo compiles the outermost frame of one.
    """
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_compile_wrapper(frame):
            yield from frames
            return
        if not _is_internal(frame):
            frames.append(frame)
        frame = frame.f_back


def within_model_call() -> bool:
    """Whether the code that calls this runs in a module's forward or in a compiled call, as a step does."""
    return _is_within(
        lambda frame: frame.f_code is nn.Module._call_impl.__code__ or _is_compile_wrapper(frame)
    )


def _is_within(is_wanted: Callable[[FrameType], bool]) -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_wanted(frame):
            return True
        frame = frame.f_back
    return False


def _is_compile_wrapper(frame: FrameType) -> bool:
    return frame.f_code.co_filename == eval_frame.__file__ and frame.f_code.co_name == "compile_wrapper"


def _is_internal(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _INTERNAL


def _describe(frame: FrameType) -> str:
    return f"`{frame.f_code.co_name}` ({frame.f_code.co_filename}:{frame.f_lineno})"
