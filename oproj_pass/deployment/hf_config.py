"""Reads the model facts that the rules need from a Hugging Face config, given as a mapping or as an object.

Decides K (the input width of o_proj) and whether the model is a mixture of experts. Reads attributes only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["model_facts"]

# vLLM's own list (ModelConfig.get_num_experts).
_EXPERT_COUNTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")


def model_facts(config: Any) -> dict[str, Any]:
    """Return `num_attention_heads`, `head_dim`, `hidden_size` and `is_moe`, leaving out what is not stated.

    `head_dim` is the width that one head brings to o_proj: `v_head_dim` under multi-head latent attention.
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
        "is_moe": _is_moe(config),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _is_moe(config: Any) -> bool:
    blocks = (config, *(_get(config, "block_configs") or ()))
    return any(_num_experts(_get(block, name)) > 0 for block in blocks for name in _EXPERT_COUNTS)


def _num_experts(count: Any) -> int:
    """One count, or the largest of a count a layer; 0 where there is none."""
    return max(count, default=0) if isinstance(count, (list, tuple)) else count or 0


def _get(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
