"""Reads the model facts that the rules need from a Hugging Face config, given as a mapping or as an object.

Decides K (the input width of o_proj), the widths of the MLPs that every token passes through, and whether the
model is a mixture of experts. Reads attributes only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["model_facts"]

# vLLM's own list (ModelConfig.get_num_experts).
_EXPERT_COUNTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
_FIRST_SPARSE = ("first_k_dense_replace", "moe_layer_start_index")
_STRIDES = ("decoder_sparse_step", "interleave_moe_layer_step")
_SHARED_COUNTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")


def model_facts(config: Any) -> dict[str, Any]:
    """Return the facts as fields of a deployment, leaving out what is not stated.

    `head_dim` is the width that one head brings to o_proj: `v_head_dim` under multi-head latent attention.
    `mlp_intermediate_sizes` are those of dense layers and of shared experts, each width once.
    """
    config = _get(config, "text_config") or config
    heads = _get(config, "num_attention_heads")
    hidden = _get(config, "hidden_size")
    head_dim = _get(config, "v_head_dim") if _get(config, "kv_lora_rank") else _get(config, "head_dim")
    if head_dim is None and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        head_dim = hidden // heads
    facts = {
        "num_attention_heads": heads,
        "head_dim": head_dim,
        "hidden_size": hidden,
        "mlp_intermediate_sizes": _mlp_sizes(config),
        "is_moe": _is_moe(config),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _is_moe(config: Any) -> bool:
    blocks = (config, *(_get(config, "block_configs") or ()))
    return any(_largest(_get(block, name)) > 0 for block in blocks for name in _EXPERT_COUNTS)


def _mlp_sizes(config: Any) -> tuple[int, ...] | None:
    """None where the config states no width at all."""
    dense = _get(config, "intermediate_size_mlp") or _get(config, "intermediate_size")
    if dense is None:
        return None
    found = [dense] * _has_dense_layers(config) + [_shared_expert_size(config) or 0]
    return tuple(sorted({width for width in found if width}))


def _has_dense_layers(config: Any) -> bool:
    """Whether some layers have no experts, by any of the ways in which configs say so."""
    frequency = _get(config, "moe_layer_freq")
    strides = (frequency, *(_get(config, name) for name in _STRIDES))
    return (
        not _is_moe(config)
        or any(_largest(_get(config, name)) > 0 for name in _FIRST_SPARSE)
        or bool(_get(config, "mlp_only_layers"))
        or (isinstance(frequency, (list, tuple)) and 0 in frequency)
        or any(isinstance(stride, int) and stride > 1 for stride in strides)
    )


def _shared_expert_size(config: Any) -> int | None:
    if width := _get(config, "shared_expert_intermediate_size"):
        return int(width)
    width = _get(config, "moe_intermediate_size")
    count = next((n for name in _SHARED_COUNTS if (n := _get(config, name))), 0)
    return width * count if isinstance(width, int) else None


def _largest(count: Any) -> int:
    """One count, or the largest of a count a layer; 0 where there is none."""
    return max(count, default=0) if isinstance(count, (list, tuple)) else count or 0


def _get(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
