"""Tiny models of transformers, with weights and without: the same report."""

import pytest
import torch

from oproj_pass.explanation import explain

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 50}
FAMILIES = {
    "llama": (
        "LlamaConfig",
        SIZES | {"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 16},
        {f"model.layers.{i}.self_attn.o_proj": ("linear", 32, 64) for i in range(2)},
        [],
    ),
    "gpt2": (
        "GPT2Config",
        {"n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": 50},
        {f"transformer.h.{i}.attn.c_proj": ("addmm", 32, 32) for i in range(2)},
        [],
    ),
    "linear attention with softmax attention": (
        "Qwen3NextConfig",
        SIZES
        | {
            "num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 2,
            "num_experts_per_tok": 1, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
            "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
        {"model.layers.3.self_attn.o_proj": ("linear", 32, 64)},
        [f"model.layers.{i}.linear_attn.out_proj" for i in range(3)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("family", FAMILIES)
def test_reports_each_familys_projections(family, device):
    kind, values, expected, left_alone = FAMILIES[family]
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**values)).eval()
        input_ids = torch.zeros(2, 3, dtype=torch.int64)
    report = explain(model, input_ids=input_ids, use_cache=False)
    assert {r.path: (r.gemm, r.out_features, r.in_features) for r in report.projections} == expected
    assert [miss.path for miss in report.near_misses] == left_alone
    assert all("without softmax attention" in miss.reason for miss in report.near_misses)
