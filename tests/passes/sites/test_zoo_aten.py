"""An ATen graph of a model has the same projections as its Dynamo graph, with or without named inputs."""

import pytest
import torch

from oproj_pass.passes.sites.attention_output import find_projections

transformers = pytest.importorskip("transformers")


def options(**values):
    return values


BASE = options(
    hidden_size=32, num_attention_heads=4, num_hidden_layers=1, intermediate_size=48, vocab_size=50,
    pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
GQA = BASE | options(num_key_value_heads=2)
# One family for each way in which the way from attention to the projection comes apart.
FAMILIES = {
    "linear of a strided input": ("LlamaConfig", GQA, 1),
    "bias": ("BertConfig", BASE | options(is_decoder=True), 1),
    "transposed matmul": ("FalconConfig", BASE, 1),
    "explicit attention": ("BloomConfig", options(hidden_size=32, n_head=4, n_layer=1, vocab_size=50), 1),
    "RMS norm before": ("BitNetConfig", GQA, 1),
    "sinks": ("GptOssConfig", GQA | options(head_dim=16, num_local_experts=2, num_experts_per_tok=1), 1),
    "latent attention": (
        "YoutuConfig",
        BASE | options(
            num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8,
            v_head_dim=12,
        ),
        1,
    ),
    "convolution next to attention": (
        "Lfm2Config", GQA | options(num_hidden_layers=2, layer_types=["conv", "full_attention"]), 1,
    ),
}  # fmt: skip


def model_of(name):
    config, values, _ = FAMILIES[name]
    return transformers.AutoModelForCausalLM.from_config(getattr(transformers, config)(**values))


@pytest.mark.parametrize("name", FAMILIES)
def test_finds_the_same_number_of_projections(name, search_aten):
    for found in search_aten(model_of(name), input_ids=torch.arange(6).view(2, 3), use_cache=False):
        assert len(found.sites) == FAMILIES[name][2]
        assert all("without softmax attention" in reason for reason in found.missed.values())


def test_names_exported_weights_by_their_path_in_the_model():
    with torch.no_grad():
        inputs = {"input_ids": torch.arange(6).view(2, 3), "use_cache": False}
        program = torch.export.export(model_of("bias").eval(), (), inputs)
    parameters = program.graph_signature.inputs_to_parameters
    (site,), _ = find_projections(program.graph_module, parameters=parameters)
    assert site.weight_path == "bert.encoder.layer.0.attention.output.dense.weight"
    assert site.path == "bert.encoder.layer.0.attention.output.dense"


def test_splits_gpt2_along_its_first_dimension(search_aten):
    config = transformers.GPT2Config(
        n_embd=32, n_head=4, n_layer=1, vocab_size=50, attn_implementation="eager"
    )
    model = transformers.GPT2LMHeadModel(config)
    for found in search_aten(model, input_ids=torch.arange(6).view(2, 3), use_cache=False):
        (site,) = found.sites
        assert (site.gemm.weight.dim, site.in_features) == (0, 32)
        assert site.gemm.bias is not None
