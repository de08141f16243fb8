"""What a size, or a scheduler that it needs, cannot stand beside (18 to 21, 23).

18: a knob that nothing acts upon. 19: the weight shardings of prefill context parallelism. 20: a scheduler
extension. 21: what the platform refuses. 23: whoever else calls the LM head.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from oproj_pass.deployment.facts import Facts
from oproj_pass.deployment.findings import Finding, error, warning
from oproj_pass.deployment.finegrained import set_sizes
from oproj_pass.deployment.knobs import BUILT, DRAFTS_WITHOUT_HEAD, Knob, assigned, listed
from oproj_pass.deployment.rule import Rule
from oproj_pass.deployment.switches import (
    NONBSP,
    O_PROJ_OVER_PCP,
    SCHEDULER_SECTION,
    VOCABULARY_OVER_PCP,
    is_on,
    section,
)

__all__ = [
    "built_sizes",
    "lmhead_callers",
    "nonbsp",
    "pcp_dp_platform",
    "pcp_weight_sharding",
]

NO_PCP_WITH_DP = ("cuda", "rocm")
_NO_NONBSP = {"additional_config": {SCHEDULER_SECTION: {NONBSP: {"enabled": False}}}}
_O_PROJ: Collection[Knob] = (Knob.OPROJ,)
_VOCABULARY: Collection[Knob] = (Knob.EMBEDDING, Knob.LMHEAD)


def built_sizes(facts: Facts) -> Iterator[Finding]:
    """18: a size that nothing acts upon would be ignored in silence.

    That a model has no MLP but routed experts is a warning: other configs may say it in other words, and the
    engine's own search decides.
    """
    for knob, size in facts.sizes.active.items():
        if knob not in BUILT:
            required = f"0: nothing here shards {knob.shards}, and the size would be ignored"
            path = f"{Rule.BUILT_SIZES.field}.{knob}"
            remedy, change = "Set it to 0, or remove the key.", set_sizes({knob: 0})
            yield error(Rule.BUILT_SIZES, size, required, remedy, field=path, change=change)
        elif knob is Knob.MLP and facts.deployment.mlp_intermediate_sizes == ():
            required = "0: the model's config states neither dense layers nor shared experts"
            path, change = f"{Rule.BUILT_SIZES.field}.{knob}", set_sizes({knob: 0})
            remedy = "Set it to 0: routed experts are shared by expert parallelism."
            yield warning(Rule.BUILT_SIZES, size, required, remedy, field=path, change=change)


def pcp_weight_sharding(facts: Facts) -> Iterator[Finding]:
    """19: weights that are sharded over the ranks of PCP are not there to be sharded over those of DP.

    PCP shards o_proj when asked, and the embedding and the LM head unless asked not to.
    """
    config, pcp = facts.deployment.additional_config, facts.deployment.prefill_context_parallel_size
    o_proj = {knob: size for knob, size in facts.splits.items() if knob in _O_PROJ}
    if o_proj and is_on(config.get(O_PROJ_OVER_PCP)):
        yield _not_both(O_PROJ_OVER_PCP, config[O_PROJ_OVER_PCP], o_proj)
    vocabulary = {knob: size for knob, size in facts.sizes.active.items() if knob in _VOCABULARY}
    if vocabulary and pcp > 1 and is_on(config.get(VOCABULARY_OVER_PCP, True)):
        yield _not_both(VOCABULARY_OVER_PCP, config.get(VOCABULARY_OVER_PCP, "on by default"), vocabulary)


def _not_both(switch: str, value: object, sizes: Mapping[Knob, int]) -> Finding:
    path = f"{Rule.PCP_WEIGHT_SHARDING.field}.{switch}"
    remedy = f"Set it to false, or {listed(sizes)} to 0."
    required, change = f"false with {assigned(sizes)}", {"additional_config": {switch: False}}
    return error(Rule.PCP_WEIGHT_SHARDING, value, required, remedy, field=path, change=change)


def nonbsp(facts: Facts) -> Iterator[Finding]:
    """20: NonBSP and the recompute scheduler, which rule 5 asks for, are two schedulers."""
    scheduler = section(facts.deployment.additional_config, SCHEDULER_SECTION)
    enabled = section(scheduler, NONBSP).get("enabled")
    if not is_on(enabled):
        return
    if facts.uniform:
        required = f"false with {assigned(facts.uniform)}, which needs the recompute scheduler"
        remedy = f"Set it to false, or {listed(facts.uniform)} to 0."
        yield error(Rule.NONBSP, enabled, required, remedy, change=_NO_NONBSP)
    elif is_on(facts.recompute_scheduler.value):
        required = f"false with {facts.recompute_scheduler.field}"
        yield error(Rule.NONBSP, enabled, required, "Keep one of the two schedulers.", change=_NO_NONBSP)


def pcp_dp_platform(facts: Facts) -> Iterator[Finding]:
    """21: vLLM's CUDA and ROCm platforms refuse PCP beside DP (vllm#54523); Ascend allows both."""
    deployment = facts.deployment
    pcp, dp = deployment.prefill_context_parallel_size, deployment.data_parallel_size
    if pcp > 1 and dp > 1 and deployment.device_type in NO_PCP_WITH_DP:
        required = f"1 with data_parallel_size={dp} on {deployment.device_type}, whose platform refuses both"
        remedy, change = "Set one of the two to 1; Ascend allows both.", {"prefill_context_parallel_size": 1}
        yield error(Rule.PCP_DP_PLATFORM, pcp, required, remedy, change=change)


def lmhead_callers(facts: Facts) -> Iterator[Finding]:
    """23: the ranks of a group call a shared LM head together, once a step and nowhere else.

    A draft model reads the same weight between steps, as often as its rank speculates.
    """
    size, method = facts.sizes.active.get(Knob.LMHEAD, 0), facts.deployment.speculative_method
    if size > 1 and method is not None and method not in DRAFTS_WITHOUT_HEAD:
        required = f"none or one of {', '.join(DRAFTS_WITHOUT_HEAD)} with {Knob.LMHEAD}={size}"
        remedy = (
            "A draft model calls the LM head as often as its own rank speculates, which the other ranks "
            f"would wait for. Speculate without a draft model, or set {Knob.LMHEAD} to 0."
        )
        yield error(Rule.LMHEAD_CALLERS, method, required, remedy, change=set_sizes({Knob.LMHEAD: 0}))
