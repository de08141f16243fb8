"""Two layers of each kind answer for all of them, exactly as tracing every layer does."""

import sys

import pytest
import torch
from torch import nn

from oproj_pass.explanation import explain
from oproj_pass.tracing.equal_layers import shorten_stack

MODULE = sys.modules[explain.__module__]
transformers = pytest.importorskip("transformers")

TINY = {
    "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
    "vocab_size": 50, "num_hidden_layers": 4,
}  # fmt: skip
CONFIGS = {
    "one kind": ("LlamaConfig", {}),
    "dense layers before experts": (
        "DeepseekV3Config",
        {
            "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
            "v_head_dim": 12, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
            "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4,
        },
    ),
    "kinds that alternate": ("Cohere2Config", {"sliding_window_pattern": 2, "num_hidden_layers": 6}),
    "hybrid layers": (
        "Lfm2Config",
        {"layer_types": ["conv", "conv", "full_attention"] * 2, "num_hidden_layers": 6},
    ),
    "no config of transformers' names": ("GPT2Config", {"n_embd": 32, "n_head": 4, "n_layer": 4}),
}  # fmt: skip


def build(name):
    kind, values = CONFIGS[name]
    with torch.device("meta"):
        config = getattr(transformers, kind)(**(TINY | values))
        return transformers.AutoModelForCausalLM.from_config(config).eval()


def step():
    return {"input_ids": torch.zeros(2, 1, dtype=torch.int64, device="meta"), "use_cache": False}


@pytest.fixture
def traced(monkeypatch):
    """The number of layers that a stack keeps, a call; 0 where it is traced whole."""
    kept = []

    def spy(model):
        found = shorten_stack(model)
        kept.append(0 if isinstance(found, str) else len(found.kept))
        return found

    monkeypatch.setattr(MODULE, "shorten_stack", spy)
    return kept


@pytest.mark.parametrize("name", CONFIGS)
def test_the_report_is_that_of_every_layer(name, traced, monkeypatch):
    model = build(name)
    short = explain(model, **step())
    monkeypatch.setattr(MODULE, "shorten_stack", lambda model: "a whole trace is wanted")
    assert explain(model, **step()) == short
    assert len(traced) == 1
    assert 0 < traced[0] < model.config.num_hidden_layers


class Block(nn.Module):
    def __init__(self, layer_idx, *, scale=1.0):
        super().__init__()
        self.layer_idx, self.scale = layer_idx, scale
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(x).view(len(x), 3, 4, -1).permute(1, 2, 0, 3)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1)
        return self.project(mixed)

    def project(self, mixed):
        return self.out(mixed)


class OddAtTheEnd(Block):
    """Decides by its number, in its forward pass, whether there is a projection."""

    def project(self, mixed):
        return mixed if self.layer_idx > 2 else self.out(mixed)


class Stack(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_layers_that_decide_by_their_number_are_all_traced():
    report = explain(Stack(OddAtTheEnd(i) for i in range(4)), torch.zeros(3, 16))
    assert [row.path for row in report.projections] == [f"layers.{i}.out" for i in range(3)]


def test_layers_of_other_constants_are_other_kinds():
    assert isinstance(shorten_stack(Stack(Block(i, scale=i) for i in range(4))), str)
    found = shorten_stack(Stack(Block(i, scale=i % 2) for i in range(6)))
    assert found.kinds == ((0, 2, 4), (1, 3, 5))
    assert found.kept == [0, 1, 4, 5]


def test_layers_that_share_a_weight_are_all_traced():
    layers = [Block(i) for i in range(4)]
    layers[3].out.weight = layers[1].out.weight
    assert "shared between layers" in shorten_stack(Stack(layers))


def test_globs_may_name_a_layer_so_all_are_traced(traced):
    report = explain(Stack(Block(i) for i in range(4)), torch.zeros(3, 16), config={"exclude": "layers.2.*"})
    assert [row.path for row in report.projections] == [f"layers.{i}.out" for i in (0, 1, 3)]
    assert traced == []


def test_the_model_keeps_its_layers():
    model = Stack(Block(i) for i in range(4))
    explain(model, torch.zeros(3, 16))
    assert len(model.layers) == 4
