"""The deployment rules on captured graphs: that there are some (8, 11), and that every step has one (13)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from oproj_pass.deployment.facts import Facts
from oproj_pass.deployment.findings import Finding, error, merged, warning
from oproj_pass.deployment.graph_mode import CompilationMode, CUDAGraphMode
from oproj_pass.deployment.knobs import assigned, listed
from oproj_pass.deployment.mending import graph_mode_to_set, graphs_to_set, vllm_compilation
from oproj_pass.deployment.rule import Rule

__all__ = ["capture_coverage", "graph_mode", "pcp_dp_graph_mode"]

PCP_DP_MODES = (CUDAGraphMode.NONE, CUDAGraphMode.FULL_DECODE_ONLY)


def graph_mode(facts: Facts) -> Iterator[Finding]:
    """Rule 8: only a captured size makes all ranks bring the same number of tokens."""
    if not facts.splits or facts.graph_mode is not CUDAGraphMode.NONE:
        return
    required = f"a graph mode with {assigned(facts.splits)}: without one the ranks differ in tokens and hang"
    mended = {
        "enforce_eager": False,
        "cudagraph_mode": graph_mode_to_set(facts),
        "compilation_mode": CompilationMode.VLLM_COMPILE,
    }
    covering = _covering(Facts(facts.deployment.model_copy(update=mended)))
    for field, value, remedy, change in _causes_of_no_graphs(facts):
        yield error(Rule.GRAPH_MODE, value, required, remedy, field=field, change=merged(change, covering))


def _causes_of_no_graphs(facts: Facts) -> Iterator[tuple[str, Any, str, dict[str, Any]]]:
    """Every setting that alone would leave no graphs, so that mending one does not uncover the next."""
    deployment, to_set, graphs = facts.deployment, graph_mode_to_set(facts), graphs_to_set(facts)
    requested, mode = deployment.cudagraph_mode, deployment.compilation_mode
    if deployment.enforce_eager:
        remedy = f"Remove enforce_eager and set cudagraph_mode to {to_set}."
        yield "enforce_eager", True, remedy, {"enforce_eager": False, **graphs}
    if requested is CUDAGraphMode.NONE:
        remedy = (
            f"Set cudagraph_mode to {to_set}. If you did not set NONE, the platform did: vllm-ascend "
            "turns compilation modes 1 and 2 into it, mode=2 with backend='oproj_npu' included."
        )
        yield "cudagraph_mode", CUDAGraphMode.NONE.name, remedy, graphs
        requested = to_set
    mended = deployment.model_copy(update={"enforce_eager": False, "cudagraph_mode": requested})
    if mode is not None and mended.effective_cudagraph_mode is CUDAGraphMode.NONE:
        remedy = (
            f"On {deployment.device_type} this mode (backend={deployment.compilation_backend!r}) leaves no "
            "graphs, and only a log line says so. Set mode to 3 (VLLM_COMPILE), without a backend."
        )
        yield "compilation_config.mode", mode.name, remedy, vllm_compilation(deployment)


def pcp_dp_graph_mode(facts: Facts) -> Iterator[Finding]:
    """Rule 11: under PCP and DP together, decode-only graphs or none see one token count on all ranks."""
    deployment, mode = facts.deployment, facts.graph_mode
    pcp, dp = deployment.prefill_context_parallel_size, deployment.data_parallel_size
    if pcp > 1 and dp > 1 and mode not in PCP_DP_MODES:
        required = (
            f"NONE or FULL_DECODE_ONLY with prefill_context_parallel_size={pcp} and data_parallel_size={dp}"
        )
        remedy = "Set cudagraph_mode to FULL_DECODE_ONLY, or one of the two sizes to 1."
        yield error(Rule.PCP_DP_GRAPH_MODE, mode.name, required, remedy, change=graphs_to_set(facts))


def capture_coverage(facts: Facts) -> Iterator[Finding]:
    """Rule 13: every possible step has a captured size. A warning: the sizes go to 0 and the start goes on.

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
            f"The start goes on with {listed(facts.uniform)} at 0. To keep {assigned(facts.uniform)}, raise "
            f"max_cudagraph_capture_size to {bound.max_decode_tokens} (or end cudagraph_capture_sizes in it)."
        )
        yield warning(Rule.CAPTURE_COVERAGE, captured, required, remedy, change=_covering(facts))


def _covering(facts: Facts) -> dict[str, Any]:
    """The captured sizes with the largest possible step; empty where they have it."""
    deployment, largest = facts.deployment, facts.bound.max_decode_tokens
    if facts.largest_captured_size >= largest:
        return {}
    ceiling = deployment.setting("max_cudagraph_capture_size", largest)
    if deployment.cudagraph_capture_sizes is None:
        return ceiling
    sizes = sorted({*deployment.cudagraph_capture_sizes, largest})
    change = deployment.setting("cudagraph_capture_sizes", sizes)
    return change if deployment.max_cudagraph_capture_size is None else merged(change, ceiling)
