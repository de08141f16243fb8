"""The deployment rules on parallelism, roles, the model and the graph mode, one function a rule.

A rule is a function from facts to findings; it knows no other rule. Rule 1 is in `finegrained.py`, the rules
on the connector chain are in `chain_rules.py`, rule 14 is `Facts.splits`, rule 15 is `preemption.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from oproj_pass.deployment.facts import Facts
from oproj_pass.deployment.finegrained import KNOB
from oproj_pass.deployment.graph_mode import CUDAGraphMode
from oproj_pass.deployment.model import Deployment
from oproj_pass.deployment.report import Finding, Severity

__all__ = [
    "capture_covers_steps",
    "data_parallel_groups",
    "graph_mode_with_pcp_and_dp",
    "graph_mode_with_split",
    "heads_divide",
    "kv_consumer",
    "mixture_of_experts",
    "no_context_parallel_split",
    "pipeline_parallel",
    "recompute_scheduler",
    "tensor_parallel",
    "usable_sizes",
]

PCP_DP_MODES = (CUDAGraphMode.NONE, CUDAGraphMode.FULL_DECODE_ONLY)


def _error(rule: int, field: str, value: Any, required: str, remedy: str) -> Finding:
    return Finding(rule, Severity.ERROR, field, value, required, remedy)


def usable_sizes(facts: Facts) -> Iterator[Finding]:
    """Rule 1: every fine-grained size is a known key with an integer of 0 or more."""
    yield from facts.sizes.findings


def tensor_parallel(facts: Facts) -> Iterator[Finding]:
    """Rule 2: o_proj is split over data-parallel ranks, so tensor parallelism may not split it too."""
    size = facts.deployment.tensor_parallel_size
    if facts.oproj > 0 and size != 1:
        remedy = f"Set tensor_parallel_size to 1 and grow data_parallel_size, or set {KNOB} to 0."
        yield _error(2, "tensor_parallel_size", size, f"1 with {KNOB}={facts.oproj}", remedy)


def data_parallel_groups(facts: Facts) -> Iterator[Finding]:
    """Rule 3: every group of a fine-grained size is full, so each size divides the data-parallel size."""
    ranks = facts.deployment.data_parallel_size
    for name, size in facts.sizes.active.items():
        if ranks % size:
            fitting = [n for n in range(1, ranks + 1) if ranks % n == 0]
            remedy = f"Set {name} to one of {fitting}, or data_parallel_size to a multiple of {size}."
            yield _error(3, "data_parallel_size", ranks, f"a multiple of {name}={size}", remedy)


def kv_consumer(facts: Facts) -> Iterator[Finding]:
    """Rule 4: only a decode node has steps of uniform length; `kv_both` prefills too."""
    config = facts.deployment.kv_transfer_config or {}
    role = config.get("kv_role") if config.get("kv_connector") else None
    if facts.oproj > 0 and role != "kv_consumer":
        remedy = (
            f"Run this on the decode node of a prefill/decode deployment, or set {KNOB} to 0 on this node."
        )
        required = f"'kv_consumer', with a kv_connector, for {KNOB}={facts.oproj}"
        yield _error(4, "kv_transfer_config.kv_role", role, required, remedy)


def recompute_scheduler(facts: Facts) -> Iterator[Finding]:
    """Rule 5: only the recompute scheduler keeps the steps of a decode node decode-shaped."""
    enabled = facts.deployment.recompute_scheduler_enable
    if facts.oproj > 0 and enabled not in (True, 1):
        field = "additional_config.recompute_scheduler_enable"
        required = f"the boolean true with {KNOB}={facts.oproj}"
        yield _error(5, field, enabled, required, f"Set it to true, or {KNOB} to 0.")


def mixture_of_experts(facts: Facts) -> Iterator[Finding]:
    """Rule 6: the data-parallel ranks of a dense model are restarted as engines without a common group."""
    active = facts.sizes.active
    if active and facts.deployment.is_moe is False:
        names = ", ".join(f"{name}={size}" for name, size in active.items())
        remedy = "Set the fine-grained sizes to 0: a dense model's ranks are separate engines of dp=1."
        yield _error(6, "is_moe", False, f"a mixture-of-experts model with {names}", remedy)


def heads_divide(facts: Facts) -> Iterator[Finding]:
    """Rule 7: the input features of o_proj fall into N equal slices."""
    width = facts.deployment.oproj_input_size
    if facts.splits and width is not None and width % facts.oproj:
        fitting = [n for n in range(1, facts.oproj + 1) if width % n == 0]
        remedy = f"Set {KNOB} to one of {fitting}, or to another divisor of {width}."
        required = f"a multiple of {KNOB}={facts.oproj}"
        yield _error(7, "num_attention_heads * head_dim", width, required, remedy)


def graph_mode_with_split(facts: Facts) -> Iterator[Finding]:
    """Rule 8: only a captured size makes all ranks bring the same number of tokens."""
    if not facts.splits or facts.graph_mode is not CUDAGraphMode.NONE:
        return
    required = f"a graph mode with {KNOB}={facts.oproj}: without one the ranks differ in tokens and hang"
    for field, value, remedy in _causes_of_no_graphs(facts.deployment):
        yield _error(8, field, value, required, remedy)


def _causes_of_no_graphs(deployment: Deployment) -> Iterator[tuple[str, Any, str]]:
    """Every setting that alone would leave no graphs, so that mending one does not uncover the next."""
    requested, mode = deployment.cudagraph_mode, deployment.compilation_mode
    if deployment.enforce_eager:
        yield "enforce_eager", True, "Remove enforce_eager and set cudagraph_mode to FULL_DECODE_ONLY."
    if requested is CUDAGraphMode.NONE:
        remedy = (
            "Set cudagraph_mode to FULL_DECODE_ONLY. If you did not set NONE, the platform did: vllm-ascend "
            "turns compilation modes 1 and 2 into it, mode=2 with backend='oproj_npu' included."
        )
        yield "cudagraph_mode", "NONE", remedy
        requested = CUDAGraphMode.FULL_DECODE_ONLY
    mended = deployment.model_copy(update={"enforce_eager": False, "cudagraph_mode": requested})
    if mode is not None and mended.effective_cudagraph_mode is CUDAGraphMode.NONE:
        remedy = (
            f"On {deployment.device_type} this mode (backend={deployment.compilation_backend!r}) leaves no "
            "graphs, and only a log line says so. Set mode to 3 (VLLM_COMPILE), without a backend."
        )
        yield "compilation_config.mode", mode.name, remedy


def no_context_parallel_split(facts: Facts) -> Iterator[Finding]:
    """Rule 9: prefill context parallelism recounts the tokens of each rank, which breaks the uniform step."""
    size = facts.deployment.prefill_context_parallel_size
    if facts.splits and size > 1:
        remedy = f"Set prefill_context_parallel_size to 1 on the decode node, or {KNOB} to 0."
        yield _error(9, "prefill_context_parallel_size", size, f"1 with {KNOB}={facts.oproj}", remedy)


def graph_mode_with_pcp_and_dp(facts: Facts) -> Iterator[Finding]:
    """Rule 11: under PCP and DP together, decode-only graphs or none see one token count on all ranks."""
    deployment, mode = facts.deployment, facts.graph_mode
    pcp, dp = deployment.prefill_context_parallel_size, deployment.data_parallel_size
    if pcp > 1 and dp > 1 and mode not in PCP_DP_MODES:
        required = (
            f"NONE or FULL_DECODE_ONLY with prefill_context_parallel_size={pcp} and data_parallel_size={dp}"
        )
        remedy = "Set cudagraph_mode to FULL_DECODE_ONLY, or one of the two sizes to 1."
        yield _error(11, "cudagraph_mode", mode.name, required, remedy)


def pipeline_parallel(facts: Facts) -> Iterator[Finding]:
    """Rule 12: the groups are cut from the data-parallel ranks of one pipeline stage only."""
    size = facts.deployment.pipeline_parallel_size
    if facts.oproj > 0 and size > 1:
        remedy = f"Set pipeline_parallel_size to 1, or {KNOB} to 0."
        yield _error(12, "pipeline_parallel_size", size, f"1 with {KNOB}={facts.oproj}", remedy)


def capture_covers_steps(facts: Facts) -> Iterator[Finding]:
    """Rule 13: every possible step has a captured size. A warning: the knob goes to 0 and the start goes on.

    Without any graphs rule 8 has spoken, and a larger ceiling would not help.
    """
    if not facts.splits or facts.graph_mode is CUDAGraphMode.NONE:
        return
    captured, bound = facts.largest_captured_size, facts.bound
    if captured < bound.max_decode_tokens:
        required = (
            f"at least {bound.max_decode_tokens}, the largest possible step: the smaller of "
            f"max_num_batched_tokens ({bound.max_num_batched_tokens}) and "
            f"max_num_seqs * (1 + num_speculative_tokens) ({bound.max_num_seqs} * {bound.decode_query_len})"
        )
        remedy = (
            f"{KNOB} is set to 0 and the start goes on. To keep it at {facts.oproj}, raise "
            f"max_cudagraph_capture_size to {bound.max_decode_tokens} (or end cudagraph_capture_sizes in it)."
        )
        yield Finding(13, Severity.WARNING, "largest captured size", captured, required, remedy)
