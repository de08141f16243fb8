"""The rules by number: what each is called, and the field at fault where it speaks of one.

Decides names only. What a rule requires is its function's; which functions run is `check.py`'s.
"""

from __future__ import annotations

import enum

__all__ = ["Rule"]

_SIZES = "additional_config.finegrained_tp_config"
_SCHEDULER = "additional_config.scheduler_config"
_CHAIN = "kv_transfer_config.kv_connector"


class Rule(enum.IntEnum):
    """A rule of the deployment check; equal to its number, which no release reuses.

    Attributes:
        title: its heading in the documentation.
        field: the setting at fault, in vLLM's spelling, unless a finding names another.
    """

    title: str
    field: str

    USABLE_SIZES = 1, "Every size is a size", _SIZES
    TENSOR_PARALLEL = 2, "No tensor parallelism", "tensor_parallel_size"
    FULL_GROUPS = 3, "Full groups", "data_parallel_size"
    KV_CONSUMER = 4, "A decode node", "kv_transfer_config.kv_role"
    RECOMPUTE_SCHEDULER = 5, "The recompute scheduler", f"{_SCHEDULER}.recompute_scheduler_enable"
    MIXTURE_OF_EXPERTS = 6, "A mixture of experts", "is_moe"
    EQUAL_SLICES = 7, "Equal slices", "num_attention_heads * head_dim"
    GRAPH_MODE = 8, "A graph mode", "cudagraph_mode"
    CONTEXT_PARALLEL = 9, "No prefill context parallelism", "prefill_context_parallel_size"
    PREEMPT_OFFLOAD = 10, "Offload at preemption", _CHAIN
    PCP_DP_GRAPH_MODE = 11, "Graphs under PCP and DP", "cudagraph_mode"
    PIPELINE_PARALLEL = 12, "No pipeline parallelism", "pipeline_parallel_size"
    CAPTURE_COVERAGE = 13, "Captured sizes cover every step", "largest captured size"
    ONE_IS_NO_SPLIT = 14, "One is no split", _SIZES
    FAILED_OFFLOAD = 15, "A failed offload aborts the request", _CHAIN
    CONNECTOR_SIZES = 16, "A connector's own sizes", _CHAIN
    LAYERWISE_CONNECTOR = 17, "Layerwise connectors and full graphs", "cudagraph_mode"
    BUILT_SIZES = 18, "A size that shards something", _SIZES
    PCP_WEIGHT_SHARDING = 19, "PCP's own weight shardings", "additional_config"
    NONBSP = 20, "NonBSP", f"{_SCHEDULER}.nonbsp_config.enabled"
    PCP_DP_PLATFORM = 21, "PCP and DP by platform", "prefill_context_parallel_size"
    EQUAL_MLP_SLICES = 22, "Equal slices of the MLP", "intermediate_size"
    LMHEAD_CALLERS = 23, "One call of the LM head a step", "speculative_config.method"

    def __new__(cls, number: int, title: str, field: str) -> Rule:
        """A member that is its number."""
        rule = int.__new__(cls, number)
        rule._value_ = number
        rule.title, rule.field = title, field
        return rule

    def __str__(self) -> str:
        return str(self.value)
