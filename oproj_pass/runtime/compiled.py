"""Keeps a compiled callable from compiling, or from running eager, once its graphs are captured.

Decides nothing about steps. A callable that Dynamo never compiled passes every check here.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch._dynamo import config as dynamo_config
from torch._dynamo import eval_frame
from torch._dynamo.exc import FailOnRecompileLimitHit

from oproj_pass.errors import EagerStepError

Call = Callable[[], Any]

_FAIL_ON_RECOMPILE = "fail_on_recompile"
_GUARD = re.compile(r"^\s*- (\d+/\d+: .*?)(?:\s+#.*)?$", re.MULTILINE)
_SEALED = eval_frame.DynamoStance(_FAIL_ON_RECOMPILE)
_SAFE_STANCES = ("default", _FAIL_ON_RECOMPILE)


def compile_call(call: Call, num_sizes: int) -> Any:
    """Let ``call`` compile whatever it needs, and return its result.

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
            return call()  # a first call may build something lazily, and the second then compiles again
    except FailOnRecompileLimitHit as error:
        raise EagerStepError(
            f"{num_sizes} sizes need more than torch._dynamo.config.recompile_limit = {limit} compilations "
            f"each, and Dynamo would run the rest eager: {error}"
        ) from error


def let_compile_again(fn: Any, modules: Iterable[nn.Module]) -> None:
    """Undo Dynamo's decision to run code eager for good, made when its recompile limit was used up."""
    forwards = [type(part).forward for module in modules for part in module.modules()]
    for function in (getattr(fn, "_torchdynamo_orig_callable", None), *forwards):
        code = getattr(function, "__code__", None)
        if code is not None and eval_frame._debug_get_cache_entry_list(code):
            set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.DEFAULT, _FrameAction.DEFAULT))


def unsafe_stance() -> str | None:
    """The stance of ``torch.compiler.set_stance`` in words, if it lets compiled code run eager."""
    stance = eval_frame._stance.stance
    if stance in _SAFE_STANCES:
        return None
    return f"torch.compiler.set_stance({stance!r}) is in force. Reset the stance to 'default'"


class SealedCall:
    """A call that has compiled all it will ever compile.

    Calling it raises ``EagerStepError`` where Dynamo would compile again, naming the guard that failed.
    """

    def __init__(self, call: Call) -> None:
        self._call = call

    def __call__(self) -> Any:
        """Run the call; see the class for what it raises."""
        prior = eval_frame._stance
        eval_frame._stance = _SEALED  # torch.compiler.set_stance does the same in 10 microseconds
        try:
            with torch.inference_mode():
                return self._call()
        except RuntimeError as error:
            # torch has no type of its own for this
            if _FAIL_ON_RECOMPILE not in str(error):
                raise
            raise EagerStepError(
                f"a compiled frame would recompile, captured graphs are sealed: {_failed_guard(error)}"
            ) from error
        finally:
            eval_frame._stance = prior


def _failed_guard(error: RuntimeError) -> str:
    """The guards that failed, newest compilation first, or the frame that was never compiled."""
    guards = _GUARD.findall(str(error))
    return "guard " + "; ".join(guards) if guards else " ".join(str(error).split())
