"""Families that mix attention with other token mixers, loop their layers or have two towers."""

from dataclasses import dataclass, field

import pytest
import torch

transformers = pytest.importorskip("transformers")

IDS = torch.arange(6).view(2, 3)
KINDS = ["linear_attention", "full_attention"]


def options(**values):
    return values


BASE = options(
    hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=48,
    vocab_size=50, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
DELTA = options(
    head_dim=16, layer_types=KINDS, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
    linear_value_head_dim=12,
)  # fmt: skip
EXPERTS = options(
    num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16, shared_expert_intermediate_size=16
)
MAMBA = options(mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8, mamba_chunk_size=8)


@dataclass
class Hybrid:
    """A tiny configuration, its attention projections, and the other mixers' that are reported."""

    config: str
    values: dict
    sites: list[str] = field(default_factory=lambda: ["model.layers.1.self_attn.o_proj"])
    mixers: list[str] = field(default_factory=list)

    def model(self):
        return transformers.AutoModelForCausalLM.from_config(
            getattr(transformers, self.config)(**self.values)
        )


HYBRIDS = [
    Hybrid("Qwen3NextConfig", BASE | DELTA | EXPERTS, mixers=["model.layers.0.linear_attn.out_proj"]),
    Hybrid("Qwen3_5TextConfig", BASE | DELTA, mixers=["model.layers.0.linear_attn.out_proj"]),
    Hybrid(
        "MiniMaxConfig",
        BASE | options(layer_types=KINDS, num_local_experts=2, block_size=4),
        mixers=["model.layers.0.self_attn.out_proj"],
    ),
    Hybrid(
        "JambaConfig",
        BASE | options(attn_layer_period=2, attn_layer_offset=1, num_experts=2, mamba_d_state=4,
                       mamba_dt_rank=4),
        mixers=["model.layers.0.mamba.out_proj"],
    ),
    Hybrid(
        "BambaConfig", BASE | MAMBA | options(attn_layer_indices=[1]),
        mixers=["model.layers.0.mamba.out_proj"],
    ),
    Hybrid(
        "GraniteMoeHybridConfig",
        BASE | MAMBA | options(layer_types=KINDS, num_local_experts=2, num_experts_per_tok=1,
                               shared_intermediate_size=16),
        mixers=["model.layers.0.mamba.out_proj"],
    ),
    # Both kinds of layer call their module `mixer`, and two mamba layers are neighbours.
    Hybrid(
        "NemotronHConfig",
        {key: value for key, value in BASE.items() if key != "num_hidden_layers"}
        | options(
            layers_block_type=["linear_attention", "linear_attention", "full_attention", "mlp"],
            head_dim=16, mamba_num_heads=8, mamba_head_dim=8, ssm_state_size=8, n_groups=2, chunk_size=8,
        ),
        ["model.layers.2.mixer.o_proj"],
        ["model.layers.0.mixer.out_proj", "model.layers.1.mixer.out_proj"],
    ),
    Hybrid(
        "RecurrentGemmaConfig",
        BASE | options(lru_width=32, block_types=["recurrent", "attention"], attention_window_size=8),
        ["model.layers.1.temporal_block.o_proj"],
        ["model.layers.0.temporal_block.linear_out"],
    ),
    Hybrid(
        "Lfm2Config",
        BASE | options(layer_types=["conv", "full_attention"]),
        ["model.layers.1.self_attn.out_proj"],
        ["model.layers.0.conv.out_proj"],
    ),
    Hybrid(
        "Mamba2Config",
        options(hidden_size=32, num_heads=8, head_dim=8, state_size=8, n_groups=2, num_hidden_layers=2,
                vocab_size=50, chunk_size=8),
        [],
        ["backbone.layers.0.mixer.out_proj", "backbone.layers.1.mixer.out_proj"],
    ),
    Hybrid(
        "RwkvConfig",
        options(hidden_size=32, num_hidden_layers=2, vocab_size=50, attention_hidden_size=32,
                intermediate_size=48),
        [],
        ["rwkv.blocks.0.attention.output", "rwkv.blocks.1.attention.output"],
    ),
]  # fmt: skip


@pytest.mark.parametrize("hybrid", HYBRIDS, ids=lambda hybrid: hybrid.config.removesuffix("Config"))
def test_takes_attention_alone_and_reports_the_other_mixers(hybrid, search):
    found = search(hybrid.model(), input_ids=IDS, use_cache=False)
    assert found.paths == hybrid.sites
    assert sorted(found.missed) == hybrid.mixers
    assert all("without softmax attention" in reason for reason in found.missed.values())
    assert all(miss.nbytes > 0 for miss in found.misses)


def test_takes_every_turn_of_looped_layers_on_one_weight_each(search):
    config = transformers.HrmTextConfig(**BASE | options(head_dim=16))
    found = search(transformers.AutoModelForCausalLM.from_config(config), input_ids=IDS, use_cache=False)
    stacks = [f"model.{stack}_module.layers.{i}.self_attn.o_proj" for stack in "LH" for i in range(2)]
    assert sorted(set(found.paths)) == sorted(stacks)
    assert len(found.sites) > len({site.weight for site in found.sites}) == len(stacks)
    assert found.missed == {}


def test_takes_self_and_cross_attention_of_an_encoder_and_decoder(search):
    config = transformers.T5Config(d_model=32, d_kv=16, d_ff=48, num_layers=1, num_heads=4, vocab_size=50)
    found = search(
        transformers.T5ForConditionalGeneration(config), input_ids=IDS, decoder_input_ids=IDS, use_cache=False
    )
    assert found.paths == [
        "encoder.block.0.layer.0.SelfAttention.o",
        "decoder.block.0.layer.0.SelfAttention.o",
        "decoder.block.0.layer.1.EncDecAttention.o",
    ]
    assert found.missed == {}


def test_takes_a_norm_between_attention_and_projection(search):
    kosmos = transformers.models.kosmos2
    config = kosmos.configuration_kosmos2.Kosmos2TextConfig(
        vocab_size=50, embed_dim=32, layers=2, ffn_dim=48, attention_heads=4
    )
    model = kosmos.modeling_kosmos2.Kosmos2TextForCausalLM._from_config(config)
    found = search(model, input_ids=IDS, use_cache=False)
    assert found.paths == [f"model.layers.{i}.self_attn.out_proj" for i in range(2)]


def test_takes_a_linear_nested_in_the_projection_module(search):
    config = transformers.MoshiConfig(**BASE | options(head_dim=16, ffn_dim=48))
    model = transformers.models.moshi.modeling_moshi.MoshiForCausalLM._from_config(config)
    found = search(model, input_ids=IDS, use_cache=False)
    assert found.paths == [f"model.layers.{i}.self_attn.o_proj.linear" for i in range(2)]


def test_one_graph_that_serves_several_layers_names_the_layer_it_was_compiled_for(search):
    """Experts dispatched by data break the graph: Dynamo compiles layer 0 and runs it again for layer 1."""
    dbrx = transformers.models.dbrx.configuration_dbrx
    config = transformers.DbrxConfig(
        d_model=32, n_heads=4, n_layers=2, vocab_size=50,
        attn_config=dbrx.DbrxAttentionConfig(kv_n_heads=2, clip_qkv=8.0, rope_theta=1e4),
        ffn_config=options(hidden_size=32, ffn_hidden_size=48, moe_num_experts=2, moe_top_k=1),
    )  # fmt: skip
    found = search(transformers.AutoModelForCausalLM.from_config(config), input_ids=IDS, use_cache=False)
    assert found.paths == ["norm_attn_norm.attn.out_proj"]
    assert found.missed == {}


def test_finds_both_attentions_of_a_layer_in_their_own_graphs(search):
    config = transformers.LongcatFlashConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=4, num_layers=1, vocab_size=50, head_dim=8,
        q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=12,
        ffn_hidden_size=48, moe_topk=2, n_routed_experts=4, zero_expert_num=2, expert_ffn_hidden_size=16,
    )  # fmt: skip
    found = search(transformers.AutoModelForCausalLM.from_config(config), input_ids=IDS, use_cache=False)
    assert found.paths == ["self_attn.0.o_proj", "self_attn.1.o_proj"]
    assert [site.in_features for site in found.sites] == [48, 48]
