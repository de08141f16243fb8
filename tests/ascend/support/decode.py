"""Tiny decoders of transformers, each with one decode step over a filled cache; for use over the stub."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

COMMON = {
    "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 97,
}  # fmt: skip
CONFIGS = {
    "gqa": ("llama", {"num_key_value_heads": 2, "head_dim": 16}),
    "mla": (
        "deepseek_v3",
        {
            "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16, "v_head_dim": 12, "n_routed_experts": 4, "num_experts_per_tok": 2,
            "n_group": 1, "topk_group": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 2,
        },
    ),
}  # fmt: skip
IN_FEATURES = {"gqa": 64, "mla": 48}  # of each output projection: heads x value head dim
CACHE_WIDTHS = {"gqa": (2, 16, 16), "mla": (1, 16, 8)}  # heads, and the width of the two halves
HIDDEN, LAYERS, BATCH, CACHED = 64, 2, 6, 5


def decoder(kind, device="npu", dtype=torch.bfloat16, layers=LAYERS):
    """A decoder with the same weights on every rank, its attention written out."""
    name, options = CONFIGS[kind]
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **COMMON, **options, num_hidden_layers=layers)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return model.eval().requires_grad_(False).to(dtype).to(device)


def decode_step(kind, device="npu", dtype=torch.bfloat16, layers=LAYERS):
    """The inputs of one decode step: a token a request, and a cache of the tokens before."""
    heads, key, value = CACHE_WIDTHS[kind]
    cache = DynamicCache()
    for layer in range(layers):
        states = (torch.randn(BATCH, heads, CACHED, width, dtype=dtype).to(device) for width in (key, value))
        cache.update(*states, layer)
    tokens = torch.randint(0, COMMON["vocab_size"], (BATCH, 1)).to(device)
    return {"input_ids": tokens, "past_key_values": cache}
