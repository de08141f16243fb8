"""Keeps a compiled callable from compiling, or from running eager, once its graphs are captured.

Decides nothing about steps. Works for any callable: one that Dynamo never compiled passes every check here.
"""

from collections.abc import Callable
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


def compile_call(call: Call, num_sizes: int) -> tuple[Any, int]:
    """Let ``call`` compile whatever it needs; returns its result and how many compiled frames it runs.

    Dynamo may compile as often for each of ``num_sizes`` shapes as it may for one; by default it would run
    the ninth shape eager with no more than a warning. Beyond that, ``EagerStepError``.
    """
    limit = dynamo_config.recompile_limit
    try:
        with (
            torch.inference_mode(),
            dynamo_config.patch(
                recompile_limit=limit * num_sizes,
                accumulated_recompile_limit=dynamo_config.accumulated_recompile_limit * num_sizes,
                fail_on_recompile_limit_hit=True,
            ),
        ):
            call()
            return _counting_frames(call)  # again: a first call may build something lazily
    except FailOnRecompileLimitHit as error:
        raise EagerStepError(
            f"{num_sizes} sizes need more than torch._dynamo.config.recompile_limit = {limit} compilations "
            f"each, and Dynamo would run the rest eager: {error}"
        ) from error


def seal(fn: Any, call: Call, frames: int) -> "SealedCall":
    """``call``, proven to run compiled and to need no further compilation; else ``EagerStepError``."""
    if frames == 0 and _is_compiled(fn):
        raise EagerStepError(
            "the model ran eager, not compiled: "
            + (
                unsafe_stance()
                or "Dynamo gave its code up, as it does when the recompile limit is reached. Make the runner "
                "before other calls of the model, or call torch._dynamo.reset() first"
            )
        )
    sealed = SealedCall(call, frames)
    sealed()
    return sealed


def unsafe_stance() -> str | None:
    """The stance of ``torch.compiler.set_stance`` in words, if it lets compiled code run eager."""
    stance = eval_frame._stance.stance
    if stance in _SAFE_STANCES:
        return None
    return f"torch.compiler.set_stance({stance!r}) is in force. Reset the stance to 'default'"


class SealedCall:
    """A call that has compiled all it will ever compile.

    Calling it raises ``EagerStepError`` where Dynamo would compile (naming the guard that failed), and where
    fewer compiled frames run than at capture, which is how code past the recompile limit runs eager.
    """

    def __init__(self, call: Call, frames: int) -> None:
        self._call, self._frames = call, frames

    def __call__(self) -> Any:
        """Run the call; see the class for what it raises."""
        try:
            with torch.inference_mode(), torch.compiler.set_stance(_FAIL_ON_RECOMPILE):
                output, frames = _counting_frames(self._call)
        except RuntimeError as error:
            # torch has no type of its own for this
            if _FAIL_ON_RECOMPILE in str(error):
                raise EagerStepError(
                    f"a compiled frame would recompile, captured graphs are sealed: {_failed_guard(error)}"
                ) from error
            raise
        if frames < self._frames:
            raise EagerStepError(f"{self._frames - frames} of its {self._frames} compiled frames ran eager")
        return output


def _counting_frames(call: Call) -> tuple[Any, int]:
    set_fullgraph_compiled_frame_count(0)
    try:
        output = call()
    finally:
        frames = set_fullgraph_compiled_frame_count(-1)
    return output, frames


def _failed_guard(error: RuntimeError) -> str:
    """The guards that failed, or the frame that was never compiled."""
    frame, _, guards = str(error).partition("guard failure(s):")
    return " ".join((f"guard {guards.strip()}" if guards else frame).split())


def _is_compiled(fn: Any) -> bool:
    return isinstance(fn, eval_frame.OptimizedModule) or hasattr(fn, "_torchdynamo_orig_callable")
