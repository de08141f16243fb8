"""What the scheduler of a configuration would do with preempted requests, and with a changing depth."""

from tests.vllm.support import configuration


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
