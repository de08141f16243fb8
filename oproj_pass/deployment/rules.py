"""The deployment rules on sizes, parallelism, roles and the model, one function a rule.

A rule is a function from facts to findings; it knows no other rule. Rule 1 is in `finegrained.py`, the rules
on graphs, on the connector chain and on what excludes each other are in the files of those names.
"""

from __future__ import annotations

from collections.abc import Iterator

from oproj_pass.automatic_sizes import AUTO
from oproj_pass.deployment.facts import Facts
from oproj_pass.deployment.findings import Finding, error, warning
from oproj_pass.deployment.finegrained import set_sizes
from oproj_pass.deployment.knobs import Knob, assigned, listed
from oproj_pass.deployment.mending import chain_to_set, ranks_to_set, size_to_set
from oproj_pass.deployment.rule import Rule
from oproj_pass.deployment.switches import RECOMPUTE_SCHEDULER, SCHEDULER_SECTION

__all__ = [
    "context_parallel",
    "equal_mlp_slices",
    "equal_slices",
    "full_groups",
    "kv_consumer",
    "mixture_of_experts",
    "pipeline_parallel",
    "recompute_scheduler",
    "tensor_parallel",
    "usable_sizes",
]

_SLICES = {Knob.OPROJ: Rule.EQUAL_SLICES, Knob.MLP: Rule.EQUAL_MLP_SLICES}


def usable_sizes(facts: Facts) -> Iterator[Finding]:
    """Rule 1: every fine-grained size is a known key with an integer of 0 or more."""
    yield from facts.sizes.findings
    for knob in facts.sizes.automatic:
        size, to_set = facts.sizes.sizes[knob], size_to_set(facts, knob)
        remedy = (
            f"This project's vLLM plugin writes a number before the engine starts: judged as {size}, the "
            "largest that fits; on a machine that the advisor knows it may be a smaller one. Where nothing "
            f"but vllm-ascend reads it, set {to_set}."
        )
        path, change = f"{Rule.USABLE_SIZES.field}.{knob}", set_sizes({knob: to_set})
        yield warning(Rule.USABLE_SIZES, AUTO, "a number", remedy, field=path, change=change)


def tensor_parallel(facts: Facts) -> Iterator[Finding]:
    """Rule 2: a weight is split over data-parallel ranks, so tensor parallelism may not split it too."""
    size, active = facts.deployment.tensor_parallel_size, facts.sizes.active
    if active and size > 1:
        remedy = f"Set tensor_parallel_size to 1 and grow data_parallel_size, or set {listed(active)} to 0."
        required, change = f"1 with {assigned(active)}", ranks_to_set(facts)
        yield error(Rule.TENSOR_PARALLEL, size, required, remedy, change=change)


def full_groups(facts: Facts) -> Iterator[Finding]:
    """Rule 3: every group of a fine-grained size is full, so each size divides the data-parallel size."""
    ranks = facts.deployment.data_parallel_size
    for knob, size in facts.sizes.active.items():
        if ranks % size:
            fitting = facts.fitting_sizes(knob)
            too = f", which keep rule {_SLICES[knob]} too" if knob in _SLICES else ""
            remedy = f"Set {knob} to one of {fitting}{too}, or data_parallel_size to a multiple of {size}."
            change = set_sizes({knob: size_to_set(facts, knob)})
            yield error(Rule.FULL_GROUPS, ranks, f"a multiple of {knob}={size}", remedy, change=change)


def kv_consumer(facts: Facts) -> Iterator[Finding]:
    """Rule 4: only a decode node has steps of uniform length; `kv_both` prefills too."""
    config = facts.deployment.kv_transfer_config or {}
    role = config.get("kv_role") if config.get("kv_connector") else None
    if facts.uniform and role != "kv_consumer":
        knobs = listed(facts.uniform)
        remedy = f"Run this on the decode node of a prefill/decode deployment, or set {knobs} to 0 here."
        required = f"'kv_consumer', with a kv_connector, for {assigned(facts.uniform)}"
        yield error(Rule.KV_CONSUMER, role, required, remedy, change=chain_to_set(facts))


def recompute_scheduler(facts: Facts) -> Iterator[Finding]:
    """Rule 5: only the recompute scheduler keeps the steps of a decode node decode-shaped."""
    field, enabled = facts.recompute_scheduler
    if facts.uniform and enabled not in (True, 1):
        remedy = (
            f"Set {Rule.RECOMPUTE_SCHEDULER.field} to true, which wins over the deprecated key at the top of "
            f"additional_config, or {listed(facts.uniform)} to 0."
        )
        required = f"the boolean true with {assigned(facts.uniform)}"
        change = {"additional_config": {SCHEDULER_SECTION: {RECOMPUTE_SCHEDULER: True}}}
        yield error(Rule.RECOMPUTE_SCHEDULER, enabled, required, remedy, field=field, change=change)


def mixture_of_experts(facts: Facts) -> Iterator[Finding]:
    """Rule 6: the data-parallel ranks of a dense model are restarted as engines without a common group."""
    active = facts.sizes.active
    if active and facts.deployment.is_moe is False:
        remedy = "Set the fine-grained sizes to 0: a dense model's ranks are separate engines of dp=1."
        required = f"a mixture-of-experts model with {assigned(active)}"
        change = set_sizes(dict.fromkeys(active, 0))
        yield error(Rule.MIXTURE_OF_EXPERTS, False, required, remedy, change=change)


def equal_slices(facts: Facts) -> Iterator[Finding]:
    """Rule 7: the input features of o_proj fall into N equal slices."""
    width, size = facts.deployment.oproj_input_size, facts.sizes.active.get(Knob.OPROJ, 1)
    if width is not None and width % size:
        yield _unequal(Knob.OPROJ, width, size, facts)


def equal_mlp_slices(facts: Facts) -> Iterator[Finding]:
    """Rule 22: the intermediate features of every dense layer and shared expert fall into N equal slices.

    Vocabularies are padded instead, so that any size fits the LM head and the embedding.
    """
    size = facts.sizes.active.get(Knob.MLP, 1)
    for width in facts.deployment.mlp_intermediate_sizes or ():
        if width % size:
            yield _unequal(Knob.MLP, width, size, facts)


def _unequal(knob: Knob, width: int, size: int, facts: Facts) -> Finding:
    fitting = facts.fitting_sizes(knob)
    remedy = f"Set {knob} to one of {fitting}, which keep rule {Rule.FULL_GROUPS} too."
    change = set_sizes({knob: size_to_set(facts, knob)})
    return error(_SLICES[knob], width, f"a multiple of {knob}={size}", remedy, change=change)


def context_parallel(facts: Facts) -> Iterator[Finding]:
    """Rule 9: prefill context parallelism recounts the tokens of each rank, which breaks the uniform step."""
    size = facts.deployment.prefill_context_parallel_size
    if facts.splits and size > 1:
        remedy = f"Set prefill_context_parallel_size to 1 on the decode node, or {listed(facts.splits)} to 0."
        change = {"prefill_context_parallel_size": 1}
        yield error(Rule.CONTEXT_PARALLEL, size, f"1 with {assigned(facts.splits)}", remedy, change=change)


def pipeline_parallel(facts: Facts) -> Iterator[Finding]:
    """Rule 12: the groups are cut from the data-parallel ranks of one pipeline stage only."""
    size, active = facts.deployment.pipeline_parallel_size, facts.sizes.active
    if active and size > 1:
        remedy = f"Set pipeline_parallel_size to 1, or {listed(active)} to 0."
        change = {"pipeline_parallel_size": 1}
        yield error(Rule.PIPELINE_PARALLEL, size, f"1 with {assigned(active)}", remedy, change=change)
