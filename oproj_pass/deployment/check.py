"""Runs every rule over a deployment and keeps every finding.

Decides the order of the rules and what rule 13 leaves of the sizes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping

from oproj_pass.deployment import chain_rules, exclusion_rules, graph_rules, rules
from oproj_pass.deployment.facts import Facts
from oproj_pass.deployment.findings import Finding
from oproj_pass.deployment.knobs import UNIFORM_STEPS, Knob
from oproj_pass.deployment.model import Deployment
from oproj_pass.deployment.report import DeploymentReport
from oproj_pass.deployment.rule import Rule

__all__ = ["JUDGES", "check_deployment"]

logger = logging.getLogger(__name__)

JUDGES: Mapping[Rule, Callable[[Facts], Iterator[Finding]]] = {
    Rule.USABLE_SIZES: rules.usable_sizes,
    Rule.TENSOR_PARALLEL: rules.tensor_parallel,
    Rule.FULL_GROUPS: rules.full_groups,
    Rule.KV_CONSUMER: rules.kv_consumer,
    Rule.RECOMPUTE_SCHEDULER: rules.recompute_scheduler,
    Rule.MIXTURE_OF_EXPERTS: rules.mixture_of_experts,
    Rule.EQUAL_SLICES: rules.equal_slices,
    Rule.GRAPH_MODE: graph_rules.graph_mode,
    Rule.CONTEXT_PARALLEL: rules.context_parallel,
    Rule.PREEMPT_OFFLOAD: chain_rules.preempt_offload,
    Rule.PCP_DP_GRAPH_MODE: graph_rules.pcp_dp_graph_mode,
    Rule.PIPELINE_PARALLEL: rules.pipeline_parallel,
    Rule.CAPTURE_COVERAGE: graph_rules.capture_coverage,
    Rule.CONNECTOR_SIZES: chain_rules.connector_sizes,
    Rule.LAYERWISE_CONNECTOR: chain_rules.layerwise_connector,
    Rule.BUILT_SIZES: exclusion_rules.built_sizes,
    Rule.PCP_WEIGHT_SHARDING: exclusion_rules.pcp_weight_sharding,
    Rule.NONBSP: exclusion_rules.nonbsp,
    Rule.PCP_DP_PLATFORM: exclusion_rules.pcp_dp_platform,
    Rule.EQUAL_MLP_SLICES: rules.equal_mlp_slices,
    Rule.LMHEAD_CALLERS: exclusion_rules.lmhead_callers,
}
"""The function that judges each rule. Rule 14 is `Facts.splits`, rule 15 is `preemption.py`."""


def check_deployment(deployment: Deployment, *, moot: Collection[Rule] = ()) -> DeploymentReport:
    """Return every finding of every rule but the `moot` ones, in the order of the rules.

    Run it on the final configuration, after the platform's `check_and_update_config`. Warnings are logged;
    errors are not raised here, see `DeploymentReport.raise_if_errors`.
    """
    facts = Facts(deployment)
    judges = (judge for rule, judge in JUDGES.items() if rule not in moot)
    findings = tuple(finding for judge in judges for finding in judge(facts))
    report = DeploymentReport(
        findings=findings,
        sizes=_remaining_sizes(facts, findings),
        cudagraph_mode=facts.graph_mode,
        not_judged=tuple(_not_judged(facts)),
    )
    for finding in report.warnings:
        logger.warning("%s", finding.message)
    return report


def _remaining_sizes(facts: Facts, findings: tuple[Finding, ...]) -> dict[Knob, int]:
    uncovered = any(finding.rule is Rule.CAPTURE_COVERAGE for finding in findings)
    off = UNIFORM_STEPS if uncovered else ()
    return {knob: size for knob, size in facts.sizes.active.items() if knob not in off}


def _not_judged(facts: Facts) -> Iterator[str]:
    for knob in facts.sizes.unusable:
        yield f"every rule on {knob}, until its value is usable"
    given = "or in a file a model that is on this machine"
    if facts.sizes.active and facts.deployment.is_moe is None:
        yield f"rule {Rule.MIXTURE_OF_EXPERTS}: give hf_config or is_moe, {given}"
    if Knob.OPROJ in facts.splits and facts.deployment.oproj_input_size is None:
        yield f"rule {Rule.EQUAL_SLICES}: give hf_config, or num_attention_heads and head_dim, {given}"
    if Knob.MLP in facts.splits and facts.deployment.mlp_intermediate_sizes is None:
        yield f"rule {Rule.EQUAL_MLP_SLICES}: give hf_config, or mlp_intermediate_sizes, {given}"
    drafts, method = facts.deployment.num_speculative_tokens, facts.deployment.speculative_method
    if facts.sizes.active.get(Knob.LMHEAD, 0) > 1 and drafts and method is None:
        yield f"rule {Rule.LMHEAD_CALLERS}: give speculative_config.method"
