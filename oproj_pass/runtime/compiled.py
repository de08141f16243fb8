"""Keeps a compiled callable from compiling, or from running eager, once its graphs are captured.

Decides nothing about steps. A callable that Dynamo never compiled passes every check here.
"""

from collections.abc import Callable
from functools import cache
from types import CodeType
from typing import Any

from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch._dynamo import config as dynamo_config
from torch._dynamo import convert_frame, eval_frame, trace_rules
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.types import ConvertFrameReturn

from oproj_pass.capture import CapturePlan
from oproj_pass.errors import EagerStepError
from oproj_pass.guard_failures import describe_failures, failed_guards
from oproj_pass.runtime.dynamo_callback import in_place_of, thread
from oproj_pass.runtime.observe import Observation

Call = Callable[[], Any]

_SAFE_STANCES = ("default", "fail_on_recompile")


def compile_call(call: Call, plan: CapturePlan, observed: Observation) -> Any:
    """Let ``call`` compile whatever it needs, and return its result; ``observed`` gets what ran.

    Dynamo may compile as often for each size of ``plan`` as it may for one; by default it would run the ninth
    shape eager with no more than a warning. Beyond that, ``EagerStepError``. Where sizes have strategies of
    their own, a second size makes no graph of a symbolic one. All this is so in this thread only, as all of
    Dynamo's settings are.
    """
    limit, num_sizes = dynamo_config.recompile_limit, len(plan.sizes)
    try:
        with dynamo_config.patch(
            recompile_limit=limit * num_sizes,
            accumulated_recompile_limit=dynamo_config.accumulated_recompile_limit * num_sizes,
            fail_on_recompile_limit_hit=True,
            automatic_dynamic_shapes=dynamo_config.automatic_dynamic_shapes and not plan.strategies,
        ):
            return _compile(call, observed)
    except FailOnRecompileLimitHit as error:
        raise EagerStepError(
            f"{num_sizes} sizes need more than torch._dynamo.config.recompile_limit = {limit} compilations "
            f"each, and Dynamo would run the rest eager: {error}"
        ) from error


def _compile(call: Call, observed: Observation) -> Any:
    try:
        with observed.observing():
            call()
    except EagerStepError:  # a sharded projection raises it in code that Dynamo gave up
        if not observed.given_up:
            raise
    if observed.given_up:
        _let_compile_again(observed.given_up)
        call()
    with observed.observing():
        return call()  # a first call may build something lazily, and the second then compiles again


def _let_compile_again(given_up: set[CodeType]) -> None:
    """Undo Dynamo's decision to run code eager for good, made when its recompile limit was used up."""
    for code in given_up:
        set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.DEFAULT, _FrameAction.DEFAULT))
    given_up.clear()


def unsafe_stance() -> str | None:
    """The stance of ``torch.compiler.set_stance`` in words, if it lets compiled code run eager."""
    stance = eval_frame._stance.stance
    if stance in _SAFE_STANCES:
        return None
    return f"torch.compiler.set_stance({stance!r}) is in force. Reset the stance to 'default'"


class SealedCall:
    """A call that has compiled all it will ever compile.

    Calling it raises ``EagerStepError`` where Dynamo would compile in this thread, naming the guard that
    failed. Other threads compile as they like.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._refusing = cache(_refusing)  # asked for at every call, with the same few callbacks

    def __call__(self) -> Any:
        """Run the call; see the class for what it raises."""
        prior = thread.substitute
        thread.substitute = self._refusing  # what `substituting` does, in a tenth of the time
        try:
            return self._call()
        finally:
            thread.substitute = prior


def _refusing(callback: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(frame: Any, *args: Any, **kwargs: Any) -> ConvertFrameReturn:
        """As Dynamo's stance ``fail_on_recompile``: frames that it would never compile pass."""
        if trace_rules.check(frame.f_code) or not convert_frame.has_tensor_in_frame(frame):
            return ConvertFrameReturn(apply_to_code=False)
        code = frame.f_code
        where = f"`{code.co_name}` ({code.co_filename}:{frame.f_lineno})"
        guards = failed_guards(code, frame.f_locals, eval_frame.innermost_backend(callback))
        why = describe_failures(guards) if guards else f"{where} was not compiled while capturing"
        raise EagerStepError(f"a compiled frame would recompile, captured graphs are sealed: {why}")

    return in_place_of(callback, refuse)
