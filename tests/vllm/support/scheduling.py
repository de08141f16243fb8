"""What the scheduler of a configuration does with preempted requests, and would with a changing depth."""

from collections import deque

from tests.vllm.support import configuration

BLOCK, MOST_STEPS = 32, 300
OFFLOAD = {
    "kv_connector": "PreemptOffloadConnector",
    "kv_connector_module_path": "tests.vllm.support.offload",
    "kv_role": "kv_consumer",
}


def preemption_facts(model):
    """The size that the policy of preempted requests is for, by configuration; a refusal as text."""
    configuration.start()
    from oproj_pass.integrations.vllm.preemption import policy_of

    def size(knob, **changes):
        try:
            policy = policy_of(configuration.build(model, knob, **changes))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return policy and policy.oproj_tensor_parallel_size

    both = {**configuration.DECODE_NODE["kv_transfer_config"], "kv_role": "kv_both"}
    recomputing = {**configuration.DECODE_NODE["kv_transfer_config"], "kv_load_failure_policy": "recompute"}
    return {
        "decode node": size(2),
        "knob 0": size(0),
        "size 1": size(1),
        "lmhead alone": size(configuration.HEAD),
        "prefills itself": size(2, section={"capacity": "auto"}, kv_transfer_config=both),
        "no kv transfer": size(2, section={"capacity": "auto"}, kv_transfer_config=None),
        "recomputing": size(2, kv_transfer_config=recomputing),
        "recomputing, knob 0": size(0, kv_transfer_config=recomputing),
    }


def depths_by_batch_size(model):
    """What is left of a schedule of drafts by batch size."""
    configuration.start()
    schedule = [(1, 8, 3), (9, 16, 0)]
    drafts = {
        "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2,
        "num_speculative_tokens_per_batch_size": schedule,
    }  # fmt: skip
    speculative = configuration.build(model, 2, speculative_config=drafts).speculative_config
    return speculative.num_speculative_tokens_per_batch_size


def asynchronous_facts(model):
    """By pool, under the asynchronous scheduler: who was preempted, how all ended, after how many tokens."""
    configuration.start()
    return {name: _served(model, pool) for name, pool in {"room": 10_000, "none": 0}.items()}


def _served(model, pool_tokens):
    from vllm import SamplingParams
    from vllm.v1.request import Request

    scheduler = _scheduler(model)
    scheduler.connector.pool_tokens = pool_tokens
    requests = {
        name: Request(name, [5] * 30, SamplingParams(max_tokens=40, ignore_eos=True), None) for name in "abc"
    }
    for request in requests.values():
        scheduler.add_request(request)
    ends = _run(scheduler)
    preempted = {name for name, request in requests.items() if request.num_preemptions}
    return preempted, ends, {name: request.num_output_tokens for name, request in requests.items()}


def _scheduler(model):
    """One with room for three prompts, and for two requests with their answers."""
    import torch
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config = configuration.build(
        model, 2, kv_transfer_config=OFFLOAD, block_size=BLOCK, enable_prefix_caching=False
    )
    config.cache_config.num_gpu_blocks = 7
    attention = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=torch.float32)
    cache = KVCacheConfig(7, [], [KVCacheGroupSpec(["layer"], attention)])
    return AsyncScheduler(config, cache, StructuredOutputManager(config), BLOCK)


def _run(scheduler):
    """Schedule each step before the last one's tokens are known; returns how each request ended."""
    in_flight, ends = deque(), {}
    for _ in range(MOST_STEPS):
        if not scheduler.has_requests():
            return ends
        in_flight.append(scheduler.schedule())
        if len(in_flight) > 1:
            step = in_flight.popleft()
            for outputs in scheduler.update_from_output(step, _sampled(step)).values():
                ended = (output for output in outputs.outputs if output.finish_reason is not None)
                ends |= {
                    output.request_id: (str(output.finish_reason), output.stop_reason) for output in ended
                }
    raise AssertionError(f"not served within {MOST_STEPS} steps: {sorted(scheduler.requests)}")


def _sampled(step):
    from vllm.v1.outputs import ModelRunnerOutput

    names = list(step.num_scheduled_tokens)
    return ModelRunnerOutput(names, {name: row for row, name in enumerate(names)}, [[7]] * len(names))
