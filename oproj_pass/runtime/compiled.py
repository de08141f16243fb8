"""Keeps a compiled callable from compiling, or from running eager, once its graphs are captured.

Decides nothing about steps. Works for any callable: one that Dynamo never compiled passes every check here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._dynamo.eval_frame import set_fullgraph_compiled_frame_count
from torch._dynamo import config as dynamo_config
from torch._dynamo import eval_frame
from torch._dynamo.exc import FailOnRecompileLimitHit

from oproj_pass.errors import EagerStepError

Call = Callable[[], Any]

_FAIL_ON_RECOMPILE = "fail_on_recompile"
_SAFE_STANCES = ("default", _FAIL_ON_RECOMPILE)


@contextmanager
def room_for(num_sizes: int) -> Iterator[None]:
    """Let Dynamo compile as often for each of ``num_sizes`` shapes as it may for one, and fail beyond that.

    By default it would stop at the ninth shape and run it eager with no more than a warning.
    """
    with dynamo_config.patch(
        recompile_limit=dynamo_config.recompile_limit * num_sizes,
        accumulated_recompile_limit=dynamo_config.accumulated_recompile_limit * num_sizes,
        fail_on_recompile_limit_hit=True,
    ):
        try:
            yield
        except FailOnRecompileLimitHit as error:
            raise EagerStepError(
                f"{num_sizes} sizes need more than torch._dynamo.config.recompile_limit = "
                f"{dynamo_config.recompile_limit} compilations each; Dynamo would run the rest eager: {error}"
            ) from error


def unsafe_stance() -> str | None:
    """The stance of ``torch.compiler.set_stance`` in words, if it lets compiled code run eager."""
    stance = eval_frame._stance.stance
    if stance in _SAFE_STANCES:
        return None
    return f"torch.compiler.set_stance({stance!r}) is in force. Reset the stance to 'default'"


def count_compiled_frames(call: Call) -> tuple[Any, int]:
    """What ``call`` returns, and how many compiled frames ran in it."""
    set_fullgraph_compiled_frame_count(0)
    try:
        output = call()
    finally:
        frames = set_fullgraph_compiled_frame_count(-1)
    return output, frames


class SealedCall:
    """A call that has compiled all it will ever compile.

    Calling it raises ``EagerStepError`` where Dynamo would compile (naming the guard that failed), and where
    fewer compiled frames run than at capture, which is how code past the recompile limit runs eager.
    """

    def __init__(self, call: Call, frames: int) -> None:
        self._call, self._frames = call, frames

    def __call__(self) -> Any:
        try:
            with torch.no_grad(), torch.compiler.set_stance(_FAIL_ON_RECOMPILE):
                output, frames = count_compiled_frames(self._call)
        except RuntimeError as error:
            # torch has no type of its own for this
            if _FAIL_ON_RECOMPILE in str(error):
                raise EagerStepError(f"a compiled frame would recompile: {_failed_guard(error)}") from error
            raise
        if frames < self._frames:
            raise EagerStepError(f"{self._frames - frames} of its {self._frames} compiled frames ran eager")
        return output


def _failed_guard(error: RuntimeError) -> str:
    """The guard of the newest compilation that failed, or the frame that was never compiled."""
    where, _, guards = str(error).partition("guard failure(s):")
    return " ".join((guards or where).split())


def is_compiled(fn: Any) -> bool:
    """Whether ``torch.compile`` made this callable."""
    return isinstance(fn, eval_frame.OptimizedModule) or hasattr(fn, "_torchdynamo_orig_callable")
