"""What an engine's scheduler puts into each step, and which graph vLLM's own dispatcher would give it.

A CPU captures no graphs, so the dispatcher is one beside the engine's own, with the sizes of a plan.
"""

import copy
from contextlib import contextmanager
from unittest.mock import patch

from oproj_pass.capture import StepBound, plan_capture


@contextmanager
def recording(llm):
    """A list that gets the tokens of each request, by request, for every step in here."""
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    schedule, steps = scheduler.schedule, []

    def recorded(*args, **kwargs):
        scheduled = schedule(*args, **kwargs)
        steps.append(dict(scheduled.num_scheduled_tokens))
        return scheduled

    with patch.object(scheduler, "schedule", recorded):
        yield steps


def graph_modes(llm, steps):
    """The graph mode of each step with requests, were full graphs captured for uniform decode steps."""
    from vllm.config import CUDAGraphMode
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

    config = copy.copy(llm.llm_engine.vllm_config)
    scheduling, drafts = config.scheduler_config, config.num_speculative_tokens
    plan = plan_capture(StepBound(scheduling.max_num_seqs, scheduling.max_num_batched_tokens, drafts))
    config.compilation_config = copy.copy(config.compilation_config)
    config.compilation_config.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
    config.compilation_config.cudagraph_capture_sizes = list(plan.sizes)
    config.compilation_config.max_cudagraph_capture_size = plan.max_size
    dispatcher = CudagraphDispatcher(config)
    dispatcher.initialize_cudagraph_keys(CUDAGraphMode.FULL_DECODE_ONLY, 1 + drafts)
    uniform = ((sum(step.values()), set(step.values()) == {1 + drafts}) for step in steps if step)
    return [dispatcher.dispatch(tokens, uniform_decode=whole)[0].name for tokens, whole in uniform]
