"""What the remedies set, decided once for all rules: each mends its own, and none undoes another's.

Decides values where two rules speak of one setting: sizes, the graph mode, the connector chain, the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from oproj_pass.deployment.connectors import CONSUMERS, PRODUCERS
from oproj_pass.deployment.facts import Facts
from oproj_pass.deployment.findings import merged
from oproj_pass.deployment.finegrained import set_sizes
from oproj_pass.deployment.graph_mode import CompilationMode, CUDAGraphMode
from oproj_pass.deployment.knobs import BUILT, DRAFTS_WITHOUT_HEAD, UNIFORM_STEPS, Knob
from oproj_pass.deployment.model import Deployment
from oproj_pass.deployment.switches import is_on

__all__ = [
    "OFFLOAD_CONNECTORS",
    "chain_to_set",
    "graph_mode_to_set",
    "graphs_to_set",
    "is_layerwise",
    "ranks_to_set",
    "size_to_set",
    "vllm_compilation",
]

OFFLOAD_CONNECTORS = ("PreemptOffloadConnector", "RecomputeCPUOffloadConnector")
"""What keeps a preempted request's cache, the present name first."""


def size_to_set(facts: Facts, knob: Knob) -> int:
    """The size of `knob` that keeps every rule on sizes: the largest up to the present one, or 0."""
    if not _may_be_on(facts, knob):
        return 0
    return max(n for n in facts.fitting_sizes(knob) if n <= facts.sizes.sizes[knob])


def _may_be_on(facts: Facts, knob: Knob) -> bool:
    deployment, size = facts.deployment, facts.sizes.sizes[knob]
    if knob not in BUILT or deployment.is_moe is False or not size:
        return False
    if knob in UNIFORM_STEPS and not (deployment.kv_transfer_config or {}).get("kv_connector"):
        return False
    if knob is Knob.MLP and deployment.mlp_intermediate_sizes == ():
        return False
    drafts = deployment.speculative_method
    return knob is not Knob.LMHEAD or size == 1 or drafts is None or drafts in DRAFTS_WITHOUT_HEAD


def ranks_to_set(facts: Facts) -> dict[str, int]:
    """tensor_parallel_size and data_parallel_size, over as many devices as now."""
    tensor, data = facts.deployment.tensor_parallel_size, facts.deployment.data_parallel_size
    if facts.sizes.active:
        tensor, data = 1, tensor * data
    return {"tensor_parallel_size": tensor, "data_parallel_size": data}


def is_layerwise(facts: Facts) -> bool:
    """Whether some connector works between layers, by its setting or by its name."""
    return any(
        is_on(connector.extra_config.get("use_layerwise")) or "layerwise" in connector.name.lower()
        for connector in facts.connectors
    )


def graph_mode_to_set(facts: Facts) -> CUDAGraphMode:
    """Graphs of whole decode steps; pieces beside a layerwise connector, none if PCP and DP refuse those."""
    if not is_layerwise(facts):
        return CUDAGraphMode.FULL_DECODE_ONLY
    stays_split = facts.deployment.prefill_context_parallel_size > 1 and not facts.splits
    refused = stays_split and ranks_to_set(facts)["data_parallel_size"] > 1
    return CUDAGraphMode.NONE if refused else CUDAGraphMode.PIECEWISE


def graphs_to_set(facts: Facts) -> dict[str, Any]:
    """That mode, and the compilation that pieces need."""
    deployment, mode = facts.deployment, graph_mode_to_set(facts)
    change = deployment.setting("cudagraph_mode", mode.name)
    compiles = deployment.compilation_mode in (None, CompilationMode.VLLM_COMPILE)
    if mode is CUDAGraphMode.PIECEWISE and not compiles:
        change = merged(change, vllm_compilation(deployment))
    return change


def vllm_compilation(deployment: Deployment) -> dict[str, Any]:
    """vLLM's own compilation, with the backend that it brings."""
    mode, backend = deployment.setting("compilation_mode", 3), deployment.setting("compilation_backend", None)
    return merged(mode, backend)


def chain_to_set(facts: Facts) -> dict[str, Any]:
    """The KV transfer with its role, its connectors' own sizes and the offload that the sizes need.

    Where no connector moves the cache there is no chain to mend: the sizes that need one go to 0.
    """
    config = facts.deployment.kv_transfer_config or {}
    if not config.get("kv_connector"):
        return set_sizes(dict.fromkeys(facts.uniform, 0))
    role = {"kv_role": "kv_consumer"} if facts.uniform else {}
    mended = _with_own_sizes(facts, {**config, **role}, None)
    if facts.splits and not {connector.name for connector in facts.connectors} & set(OFFLOAD_CONNECTORS):
        mended = _with_offload(mended)
    return {"kv_transfer_config": mended}


def _with_own_sizes(facts: Facts, config: Mapping[str, Any], parent_role: str | None) -> dict[str, Any]:
    """A connector, and those inside, whose stated sizes of this node are the node's."""
    extra = config.get("kv_connector_extra_config")
    if not isinstance(extra, Mapping):
        return dict(config)
    role = config.get("kv_role") or parent_role
    mended: dict[str, Any] = {name: _node_sizes(facts, stated) for name, stated in _own_sides(extra, role)}
    if isinstance(inner := extra.get("connectors"), list):
        mended["connectors"] = [
            _with_own_sizes(facts, one, role) if isinstance(one, Mapping) else one for one in inner
        ]
    return {**config, "kv_connector_extra_config": {**extra, **mended}}


def _own_sides(extra: Mapping[str, Any], role: str | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for side, roles in (("prefill", PRODUCERS), ("decode", CONSUMERS)):
        if role in roles and isinstance(extra.get(side), Mapping):
            yield side, extra[side]


def _node_sizes(facts: Facts, stated: Mapping[str, Any]) -> dict[str, Any]:
    ranks = ranks_to_set(facts)
    own = {"tp_size": ranks["tensor_parallel_size"], "dp_size": ranks["data_parallel_size"]}
    return {**stated, **{key: size for key, size in own.items() if key in stated}}


def _with_offload(config: Mapping[str, Any]) -> dict[str, Any]:
    """The chain that is there, its connectors and the offload's under one MultiConnector.

    A single connector's own settings stay above it too: merging a change takes nothing away.
    """
    extra = config.get("kv_connector_extra_config") or {}
    is_multi = config["kv_connector"] == "MultiConnector"
    inner = [one for one in extra.get("connectors") or () if one] if is_multi else [dict(config)]
    offload = {"kv_connector": OFFLOAD_CONNECTORS[0], "kv_role": config["kv_role"]}
    return {
        **config,
        "kv_connector": "MultiConnector",
        "kv_connector_extra_config": {**extra, "connectors": [*inner, offload]},
    }
