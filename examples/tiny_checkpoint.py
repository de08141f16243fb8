"""Writes tiny checkpoints with random weights: real config, tokenizer and safetensors files, no download.

Two shapes: ``qwen3_moe`` (grouped-query attention) and ``deepseek_v3`` (multi-head latent attention), both
with a mixture of experts, as data-parallel decoding needs.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

Weights = dict[str, torch.Tensor]

_COMMON = {
    "hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 512, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False,
    "norm_topk_prob": True, "num_experts_per_tok": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "torch_dtype": "float32",
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {
        **_COMMON, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 64,
        "num_key_value_heads": 2, "num_experts": 4, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "use_sliding_window": False,
    },
    "deepseek_v3": {
        **_COMMON, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
        "num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 2,
        "topk_group": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 0,
    },
}  # fmt: skip


def write_checkpoint(folder: Path, shape: str, *, seed: int = 0, **changes: Any) -> Path:
    """A checkpoint of one of ``CONFIGS``, with ``changes`` to its config; returns its ``folder``."""
    write_config(folder, shape, **changes)
    config = {**CONFIGS[shape], **changes}
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: _ones_or_random(name, size, generator)
        for name, size in (_qwen3_moe(config) if shape == "qwen3_moe" else _deepseek_v3(config))
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_config(folder: Path, shape: str, **changes: Any) -> Path:
    """As ``write_checkpoint``, without weights: for ``load_format="dummy"``."""
    config = {**CONFIGS[shape], **changes}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    _write_tokenizer(folder, config["vocab_size"])
    return folder


def _ones_or_random(name: str, size: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    if "norm" in name:
        return torch.ones(size)
    return torch.randn(size, generator=generator) * 0.15


def _write_tokenizer(folder: Path, vocab_size: int) -> None:
    Tokenizer(WordLevel({f"w{i}": i for i in range(vocab_size)}, unk_token="w0")).save(
        str(folder / "tokenizer.json")
    )
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w2", "pad_token": "w0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


_Sizes = Iterator[tuple[str, tuple[int, ...]]]


def _model(config: dict[str, Any]) -> _Sizes:
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    yield "lm_head.weight", (vocabulary, hidden)
    yield "model.norm.weight", (hidden,)
    for layer in range(config["num_hidden_layers"]):
        yield f"model.layers.{layer}.input_layernorm.weight", (hidden,)
        yield f"model.layers.{layer}.post_attention_layernorm.weight", (hidden,)


def _mlp(prefix: str, hidden: int, width: int) -> _Sizes:
    yield f"{prefix}.gate_proj.weight", (width, hidden)
    yield f"{prefix}.up_proj.weight", (width, hidden)
    yield f"{prefix}.down_proj.weight", (hidden, width)


def _qwen3_moe(config: dict[str, Any]) -> _Sizes:
    yield from _model(config)
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    for layer in range(config["num_hidden_layers"]):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            yield f"{attention}.{name}.weight", (rows, hidden)
        yield f"{attention}.q_norm.weight", (head_dim,)
        yield f"{attention}.k_norm.weight", (head_dim,)
        yield f"{attention}.o_proj.weight", (hidden, queries)
        yield f"{mlp}.gate.weight", (config["num_experts"], hidden)
        for expert in range(config["num_experts"]):
            yield from _mlp(f"{mlp}.experts.{expert}", hidden, config["moe_intermediate_size"])


def _deepseek_v3(config: dict[str, Any]) -> _Sizes:
    yield from _model(config)
    hidden, heads, rope = config["hidden_size"], config["num_attention_heads"], config["qk_rope_head_dim"]
    query_rank, latent = config["q_lora_rank"], config["kv_lora_rank"]
    nope, value = config["qk_nope_head_dim"], config["v_head_dim"]
    for layer in range(config["num_hidden_layers"]):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        yield f"{attention}.q_a_proj.weight", (query_rank, hidden)
        yield f"{attention}.q_a_layernorm.weight", (query_rank,)
        yield f"{attention}.q_b_proj.weight", (heads * (nope + rope), query_rank)
        yield f"{attention}.kv_a_proj_with_mqa.weight", (latent + rope, hidden)
        yield f"{attention}.kv_a_layernorm.weight", (latent,)
        yield f"{attention}.kv_b_proj.weight", (heads * (nope + value), latent)
        yield f"{attention}.o_proj.weight", (hidden, heads * value)
        if layer < config["first_k_dense_replace"]:
            yield from _mlp(mlp, hidden, config["intermediate_size"])
            continue
        experts, width = config["n_routed_experts"], config["moe_intermediate_size"]
        yield f"{mlp}.gate.weight", (experts, hidden)
        yield f"{mlp}.gate.e_score_correction_bias", (experts,)
        yield from _mlp(f"{mlp}.shared_experts", hidden, width * config["n_shared_experts"])
        for expert in range(experts):
            yield from _mlp(f"{mlp}.experts.{expert}", hidden, width)
