"""Every family of transformers with attention of its own kind: each of its weights has its role."""

from dataclasses import dataclass, field

import pytest
import torch

transformers = pytest.importorskip("transformers")


def options(**values):
    return values


BASE = options(
    hidden_size=32,
    num_attention_heads=4,
    num_hidden_layers=2,
    intermediate_size=48,
    vocab_size=50,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
GQA = BASE | options(num_key_value_heads=2)
WIDE = GQA | options(head_dim=16)  # K = 64, H = 32
GPT = options(n_embd=32, n_head=4, n_layer=2, vocab_size=50, bos_token_id=1, eos_token_id=2)
MLA = BASE | options(
    num_key_value_heads=4,
    q_lora_rank=16,
    kv_lora_rank=16,
    qk_rope_head_dim=8,
    qk_nope_head_dim=8,
    v_head_dim=12,
)
ROUTED = options(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, n_group=1, topk_group=1)
SPARSE = options(index_topk=4, index_head_dim=16, index_n_heads=2)
EXPERTS = options(num_local_experts=4, num_experts_per_tok=2)
FEW_EXPERTS = options(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
O_PROJ = "model.layers.{}.self_attn.o_proj"


@dataclass
class Family:
    """A tiny configuration and the projections its model must have."""

    config: str
    values: dict
    paths: str | list[str] = O_PROJ  # a template stands for both layers
    form: str = "linear"
    features: tuple[int, int] = (32, 32)  # K, H
    contraction_dim: int = 1
    bias: bool = False
    inputs: dict = field(default_factory=dict)

    def expected(self) -> list[str]:
        return self.paths if isinstance(self.paths, list) else [self.paths.format(i) for i in range(2)]

    def model(self) -> torch.nn.Module:
        return transformers.AutoModelForCausalLM.from_config(
            getattr(transformers, self.config)(**self.values)
        )


FAMILIES = [
    Family("LlamaConfig", WIDE, features=(64, 32)),
    Family("Phi3Config", GQA),
    Family(
        "Llama4TextConfig",
        WIDE | options(intermediate_size_mlp=48, num_local_experts=2, moe_layers=[1]),
        features=(64, 32),
    ),
    Family("NemotronConfig", WIDE, features=(64, 32)),
    Family("ApertusConfig", GQA),
    Family("DogeConfig", GQA),
    Family("MiniMaxM2Config", WIDE | EXPERTS, features=(64, 32)),
    Family("GPT2Config", GPT, "transformer.h.{}.attn.c_proj", "addmm", contraction_dim=0, bias=True),
    Family("OpenAIGPTConfig", GPT, "transformer.h.{}.attn.c_proj", "addmm", contraction_dim=0, bias=True),
    Family("GPTBigCodeConfig", GPT, "transformer.h.{}.attn.c_proj", bias=True),
    Family("PhiConfig", GQA, "model.layers.{}.self_attn.dense", bias=True),
    Family("PersimmonConfig", BASE, "model.layers.{}.self_attn.dense", bias=True),
    Family("GPTNeoXConfig", BASE, "gpt_neox.layers.{}.attention.dense", bias=True),
    Family(
        "BloomConfig",
        options(hidden_size=32, n_head=4, n_layer=2, vocab_size=50),
        "transformer.h.{}.self_attention.dense",
        bias=True,
    ),
    # Its graph breaks before the first layer and after the last: attention and projection stay in one graph.
    Family("CTRLConfig", GPT | options(dff=48), "h.{}.multi_head_attention.dense", bias=True),
    Family("FalconConfig", BASE, "transformer.h.{}.self_attention.dense", "matmul"),
    Family(
        "OPTConfig",
        BASE | options(ffn_dim=48, word_embed_proj_dim=32),
        "model.decoder.layers.{}.self_attn.out_proj",
        bias=True,
    ),
    Family("BioGptConfig", BASE, "biogpt.layers.{}.self_attn.out_proj", bias=True),
    Family(
        "XGLMConfig",
        options(d_model=32, attention_heads=4, num_layers=2, ffn_dim=48, vocab_size=50),
        "model.layers.{}.self_attn.out_proj",
        bias=True,
    ),
    Family(
        "GPTNeoConfig",
        options(
            hidden_size=32,
            num_heads=4,
            num_layers=2,
            vocab_size=50,
            attention_types=[[["global", "local"], 1]],
        ),
        "transformer.h.{}.attn.attention.out_proj",
        bias=True,
    ),
    Family("CodeGenConfig", GPT | options(rotary_dim=4), "transformer.h.{}.attn.out_proj"),
    Family("GPTJConfig", GPT | options(rotary_dim=4), "transformer.h.{}.attn.out_proj"),
    Family(
        "MptConfig",
        options(d_model=32, n_heads=4, n_layers=2, vocab_size=50),
        "transformer.blocks.{}.attn.out_proj",
    ),
    Family(
        "BertConfig",
        BASE | options(is_decoder=True),
        "bert.encoder.layer.{}.attention.output.dense",
        bias=True,
    ),
    Family(
        "RobertaConfig",
        BASE | options(is_decoder=True),
        "roberta.encoder.layer.{}.attention.output.dense",
        bias=True,
    ),
    Family("CohereConfig", GQA),
    Family("Cohere2Config", GQA),
    Family("StableLmConfig", GQA | options(use_parallel_residual=True)),
    Family("GptOssConfig", WIDE | EXPERTS, features=(64, 32), bias=True),
    Family("Glm4Config", WIDE, features=(64, 32)),
    Family("Gemma2Config", WIDE, features=(64, 32)),
    Family("Olmo2Config", GQA),
    Family("Exaone4Config", GQA | options(sliding_window_pattern=2)),
    Family("BitNetConfig", GQA),
    Family("AfmoeConfig", WIDE | FEW_EXPERTS | options(global_attn_every_n_layers=2), features=(64, 32)),
    Family("DeepseekV2Config", MLA | ROUTED | options(first_k_dense_replace=1), features=(48, 32)),
    Family("DeepseekV3Config", MLA | ROUTED | options(first_k_dense_replace=1), features=(48, 32)),
    Family("DeepseekV32Config", MLA | ROUTED | SPARSE | options(first_k_dense_replace=1), features=(48, 32)),
    Family("YoutuConfig", MLA, features=(48, 32)),
    Family(
        "GlmMoeDsaConfig",
        MLA | ROUTED | SPARSE | options(mlp_layer_types=["dense", "sparse"]),
        features=(48, 32),
    ),
    Family("Starcoder2Config", GQA, bias=True),
    Family("SeedOssConfig", WIDE | options(attention_out_bias=True), features=(64, 32), bias=True),
    Family("SeedOssConfig", WIDE | options(attention_out_bias=False), features=(64, 32)),
    Family(
        "TrOCRConfig",
        options(
            d_model=32,
            decoder_layers=2,
            decoder_attention_heads=4,
            decoder_ffn_dim=48,
            vocab_size=50,
            cross_attention_hidden_size=32,
        ),
        [
            f"model.decoder.layers.{i}.{kind}.out_proj"
            for i in range(2)
            for kind in ("self_attn", "encoder_attn")
        ],
        bias=True,
        inputs={"encoder_hidden_states": torch.zeros(2, 5, 32)},
    ),
    Family(
        "WhisperConfig",
        options(
            d_model=32,
            decoder_layers=2,
            encoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            decoder_ffn_dim=48,
            encoder_ffn_dim=48,
            vocab_size=50,
            pad_token_id=0,
        ),
        [
            f"model.decoder.layers.{i}.{kind}.out_proj"
            for i in range(2)
            for kind in ("self_attn", "encoder_attn")
        ],
        bias=True,
        inputs={"encoder_outputs": (torch.zeros(2, 5, 32),)},
    ),
]


# Modules whose matrices are no MLP's, by their classes: attention, routers, stacks of experts, heads.
NO_MLP = ("Attention", "Router", "Experts", "Embedding", "PredictionHead", "LMHead")
NORM_INSIDE = ("BitNetConfig",)  # between its activation and its last GEMM


def mlp_weights(model):
    """The matrices of a model that are left when those of all other modules are taken away."""
    others = {model.get_output_embeddings()}
    for module in model.modules():
        if any(name in type(module).__name__ for name in NO_MLP) and module is not model:
            others.update(module.modules())
    taken = {id(weight) for module in others for weight in module.parameters(recurse=False)}
    weights = {name: weight for name, weight in model.named_parameters() if weight.dim() == 2}
    return {name for name, weight in weights.items() if id(weight) not in taken}


def first_names(model):
    return {id(weight): name for name, weight in reversed([*model.named_parameters()])}


def matrices_of(sites, model):
    """By their first names in the model: a graph behind a graph break names them from its own frame."""
    paths = {on.path for site in sites for on in site.stored if on.path.endswith("weight")}
    weights, names = dict(model.named_parameters(remove_duplicate=False)), first_names(model)
    return {names[id(weights[next(name for name in weights if name.endswith(path))])] for path in paths}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.config.removesuffix("Config"))
def test_takes_exactly_the_weights_of_each_role(family, search_roles):
    model = family.model()
    ids = torch.arange(6).view(2, 3)
    found = search_roles(model, input_ids=ids, use_cache=False, **family.inputs)
    check_output_projections(family, found.of_role("oproj"))
    check_mlps(family, model, found.of_role("mlp"))
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert matrices_of(found.of_role("embedding").sites, model) == {first_names(model)[id(table)]}
    assert matrices_of(found.of_role("lmhead").sites, model) == {first_names(model)[id(head)]}
    assert found.of_role("lmhead").missed == {}
    assert all("as a table of positions is" in miss for miss in found.of_role("embedding").missed.values())


def check_output_projections(family, found):
    assert found.paths == family.expected()
    assert found.missed == {}
    for site in found.sites:
        assert (site.in_features, site.out_features) == family.features
        assert (site.gemm.form.name, site.gemm.weight.dim) == (family.form, family.contraction_dim)
        assert (site.gemm.bias is not None) == family.bias
        assert site.weight_path == f"{site.path}.weight"


def check_mlps(family, model, found):
    expected = {name for name in mlp_weights(model) if "model.encoder." not in name}  # Whisper's does not run
    if family.config in NORM_INSIDE:
        assert found.sites == []
        assert all("mixes intermediate features" in reason for reason in found.missed.values())
    else:
        assert matrices_of(found.sites, model) == expected
        assert all("routed experts" in reason for reason in found.missed.values())
    stacks = [weight for weight in model.parameters() if weight.dim() == 3]
    left = [miss for miss in found.misses if "routed experts" in miss.reason]
    assert sum(miss.nbytes for miss in left) == sum(weight.nbytes for weight in stacks)
