"""Runs every rule over a deployment and keeps every finding.

Decides the order of the rules and what rule 13 leaves of the knob.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator

from oproj_pass.deployment import chain_rules, rules
from oproj_pass.deployment.facts import Facts
from oproj_pass.deployment.finegrained import KNOB
from oproj_pass.deployment.model import Deployment
from oproj_pass.deployment.report import DeploymentReport, Finding

__all__ = ["check_deployment"]

logger = logging.getLogger(__name__)

_RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    rules.usable_sizes,
    rules.tensor_parallel,
    rules.data_parallel_groups,
    rules.kv_consumer,
    rules.recompute_scheduler,
    rules.mixture_of_experts,
    rules.heads_divide,
    rules.graph_mode_with_split,
    rules.no_context_parallel_split,
    chain_rules.preempt_offload_connector,
    rules.graph_mode_with_pcp_and_dp,
    rules.pipeline_parallel,
    rules.capture_covers_steps,
    chain_rules.connector_sizes_agree,
    chain_rules.layerwise_needs_piecewise,
)


def check_deployment(deployment: Deployment, *, moot: Collection[int] = ()) -> DeploymentReport:
    """Return every finding of every rule but the `moot` ones, in the order of the rules.

    Run it on the final configuration, after the platform's `check_and_update_config`. Warnings are logged;
    errors are not raised here, see `DeploymentReport.raise_if_errors`.
    """
    facts = Facts(deployment)
    found = (finding for rule in _RULES for finding in rule(facts))
    findings = tuple(finding for finding in found if finding.rule not in moot)
    knob_is_off = any(finding.rule == 13 for finding in findings)
    report = DeploymentReport(
        findings=findings,
        oproj_tensor_parallel_size=0 if knob_is_off else facts.oproj,
        cudagraph_mode=facts.graph_mode,
        not_judged=tuple(_not_judged(facts)),
    )
    for finding in report.warnings:
        logger.warning("%s", finding.message)
    return report


def _not_judged(facts: Facts) -> Iterator[str]:
    if not facts.sizes.oproj_is_usable:
        yield f"every rule on {KNOB}, until its value is usable"
    if facts.sizes.active and facts.deployment.is_moe is None:
        yield "rule 6: give hf_config, or is_moe"
    if facts.splits and facts.deployment.oproj_input_size is None:
        yield "rule 7: give hf_config, or num_attention_heads and head_dim"
