"""Refuses a real step that is about to run eager, in the last hook before vLLM's model runs.

``set_additional_forward_context`` is called after dispatch and after the data-parallel ranks have agreed on
the mode, for every step but the replay of a full graph. Only the first forward with attention of a worker's
``execute_model`` counts: profile runs, warm-up, capture and the dummy batches of idle ranks do not come
through it, and a draft model's own forwards come after.

An exchange of fixed capacity needs no guard, and the LM head's (``head``) has one.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from vllm.config import CUDAGraphMode
from vllm.platforms import current_platform
from vllm.v1.worker.worker_base import WorkerWrapperBase

from oproj_pass.errors import EagerStepError
from oproj_pass.integrations.vllm.hooks import wrap
from oproj_pass.integrations.vllm.settings import settings_of
from oproj_pass.integrations.vllm.sizes import in_words

_step_awaits_forward: ContextVar[bool] = ContextVar("step_awaits_forward", default=False)


def install() -> None:
    """Wrap the worker's step and the hook before its forward."""
    wrap(WorkerWrapperBase, "execute_model", _stepping)
    wrap(type(current_platform), "set_additional_forward_context", _guarded)


def _stepping(original: Callable[..., Any]) -> Callable[..., Any]:
    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        token = _step_awaits_forward.set(scheduler_output.total_num_scheduled_tokens > 0)
        try:
            return original(self, scheduler_output, *args, **kwargs)
        finally:
            _step_awaits_forward.reset(token)

    return execute_model


def _guarded(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_additional_forward_context(cls: type, *args: Any, **context: Any) -> Any:
        if _step_awaits_forward.get() and context.get("attn_metadata") is not None:
            _step_awaits_forward.set(False)
            require_graph(context["vllm_config"], context["cudagraph_runtime_mode"], context)
        return original(cls, *args, **context)

    return set_additional_forward_context


def require_graph(vllm_config: Any, mode: CUDAGraphMode, context: dict[str, Any]) -> None:
    """Raise ``EagerStepError`` if a step of an engine with sharded weights was dispatched to no graph."""
    settings = settings_of(vllm_config)
    if settings is None or settings.capacity is not None or mode != CUDAGraphMode.NONE:
        return
    if not (shared := in_words(settings.in_model)):
        return
    across = context.get("num_tokens_across_dp")
    by_rank = "" if across is None else f" (by rank {across.tolist()})"
    largest = vllm_config.compilation_config.max_cudagraph_capture_size or 0
    raise EagerStepError(
        f"a step of {context.get('num_tokens')} tokens{by_rank} was dispatched to graph mode NONE, and "
        f"weights are shared ({shared}); the largest captured size is {largest}. Causes: the batch"
        " is larger, it holds a prefill or mixed requests, or a peer's batch does. All ranks of a group "
        "must bring the same number of rows, and only a captured graph guarantees it. Prefill on prefill "
        "nodes, raise max_cudagraph_capture_size to max_num_seqs x (1 + num_speculative_tokens), or set "
        "additional_config.oproj_pass.capacity."
    )
