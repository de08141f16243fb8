"""Lets Dynamo trace a model without leaving a trace of its own.

Everything here is Dynamo's process-wide state: compiled code on code objects, the history that turns sizes
dynamic, counters. A user's own compiled model must neither see this capture nor be seen by it.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._C._dynamo.eval_frame import (
    _get_cache_entries_for_region,
    _get_total_cache_entry_count,
    reset_code,
)
from torch._dynamo import config, convert_frame, eval_frame, pgo, symbolic_convert, utils
from torch._dynamo.guards import DeletedGuardManagerWrapper

from oproj_pass.errors import ConfigError

_NO_RECOMPILE_LIMIT = 2**31 - 1


@contextmanager
def isolated_compile(backend: Callable[..., Any]) -> Iterator[Callable[[Callable[..., Any]], Any]]:
    """Yields a stand-in for ``torch.compile`` whose compiled code and statistics vanish on leaving.

    The recompile limit does not apply in it. Compiled code of this process is neither used nor changed.
    Raises ``ConfigError`` if the environment turns Dynamo off.
    """
    compiler = torch._dynamo.optimize(
        backend,
        isolate_recompiles=True,
        recompile_limit=_NO_RECOMPILE_LIMIT,
    )
    if not isinstance(compiler, eval_frame.OptimizeContext):
        raise ConfigError("Dynamo is turned off: unset TORCHDYNAMO_DISABLE")
    with ExitStack() as stack:
        stack.enter_context(_statistics_kept())
        stack.enter_context(_functions_unnamed())
        stack.callback(_forget, compiler._isolate_recompiles_id, backend)
        stack.enter_context(torch.compiler.set_stance("default"))
        stack.enter_context(
            config.patch(
                automatic_dynamic_local_pgo=False,
                automatic_dynamic_remote_pgo=False,
                accumulated_recompile_limit=_NO_RECOMPILE_LIMIT,
                run_gc_after_compile=False,  # as long as a quarter of the trace, and nothing here needs it
            )
        )
        yield compiler


@contextmanager
def _statistics_kept() -> Iterator[None]:
    counters, reasons = copy.deepcopy(utils.counters), list(utils.graph_break_reasons)
    frame_counts = convert_frame.FRAME_COUNTER, copy.copy(convert_frame.FRAME_COMPILE_COUNTER)
    history = pgo._CODE_STATE, pgo._INIT_CODE_STATE
    pgo._CODE_STATE, pgo._INIT_CODE_STATE = defaultdict(pgo.CodeState), None
    utils.graph_break_reasons.clear()
    try:
        yield
    finally:
        utils.counters.clear()
        utils.counters.update(counters)
        utils.graph_break_reasons[:] = reasons
        convert_frame.FRAME_COUNTER, convert_frame.FRAME_COMPILE_COUNTER = frame_counts
        pgo._CODE_STATE, pgo._INIT_CODE_STATE = history


@contextmanager
def _functions_unnamed() -> Iterator[None]:
    """Dynamo tokenises the file of every function that it traces, only to name the function in a log."""
    get_funcname = symbolic_convert.get_funcname  # type: ignore[attr-defined]
    symbolic_convert.get_funcname = lambda filename, lineno: None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        symbolic_convert.get_funcname = get_funcname  # type: ignore[attr-defined]


def _forget(region: int, backend: Callable[..., Any]) -> None:
    """Drop what one capture compiled; Dynamo would keep it, and the model behind it, on the code objects."""
    eval_frame.cached_backends.pop(id(backend), None)
    for reference in convert_frame.input_codes.seen:
        if (code := reference()) is not None and (entries := _get_cache_entries_for_region(code, region)):
            for entry in entries:
                if (state := entry.guard_manager.extra_state) is not None:
                    state.invalidate(entry, DeletedGuardManagerWrapper("end of capture"))
            if _get_total_cache_entry_count(code) == len(entries):
                reset_code(code)
