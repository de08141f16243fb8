"""How a checkpoint's weights are stored, by its quantization_config; a 4096 × 4096 weight unless stated."""

import pytest

from oproj_pass.errors import ConfigError
from oproj_pass.explanation.quantization_config import checkpoint_format

PATH = "model.layers.3.self_attn.o_proj"
N = 4096 * 4096


def compressed(weights, **fields):
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **fields}


@pytest.mark.parametrize(
    ("given", "nbytes", "unit"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, N + 32 * 32 * 4, 128),
        ({"quant_method": "fp8"}, N, 1),
        ({"quant_method": "fbgemm_fp8"}, N, 1),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, N // 2 + 4096 * 32 * 5 // 2, 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, N, 1),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, N // 2, 8),
        (
            {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": False},
            N // 2 + 4096 * 64 * 2,
            64,
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, N, 1),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, N // 2 + 4096 * 64 * 4, 64),
        ({"quant_method": "mxfp4"}, N // 2 + 4096 * 128, 32),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, N, 1),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4"}}, N // 2 + 4096 * 256, 16),
        (compressed({"num_bits": 8, "type": "float", "strategy": "channel"}), N, 1),
        (compressed({"num_bits": 8, "type": "int", "strategy": "channel"}), N, 1),
        (
            compressed({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}),
            N // 2 + 4096 * 32 * 2,
            128,
        ),
        (
            compressed({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}),
            N + 32 * 32 * 4,
            128,
        ),
    ],
)  # fmt: skip
def test_counts_the_bytes_that_are_cut(given, nbytes, unit):
    stored = checkpoint_format({"quantization_config": given})(PATH)
    assert (stored.nbytes(4096, 4096), stored.unit) == (nbytes, unit)


@pytest.mark.parametrize(
    ("given", "is_quantised"),
    [
        ({"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]}, True),
        ({"quant_method": "fp8", "modules_to_not_convert": ["self_attn"]}, False),
        ({"quant_method": "fp8", "ignored_layers": ["model.layers.3.self_attn.o_proj"]}, False),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["model.layers.3*"]}, False),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["model.layers.30*"]}, True),
        (compressed({"num_bits": 8}, ignore=["re:.*self_attn.*"]), False),
        (compressed({"num_bits": 8}, ignore=["re:.*mlp.*"]), True),
    ],
)
def test_leaves_out_what_the_checkpoint_leaves_alone(given, is_quantised):
    assert (checkpoint_format({"quantization_config": given})(PATH) is not None) is is_quantised


def test_takes_the_group_whose_targets_name_the_module():
    groups = {
        "group_0": {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 4, "strategy": "channel"}},
        "group_1": {"targets": ["re:.*self_attn.*"], "weights": {"num_bits": 8, "strategy": "channel"}},
    }
    stored_as = checkpoint_format(
        {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups}}
    )
    assert stored_as(PATH).bits == 8
    assert stored_as("lm_head") is None
    assert str(stored_as) == "int4, int8"


@pytest.mark.parametrize("config", [{}, {"quantization_config": None}, {"text_config": {}}])
def test_an_unquantised_checkpoint_has_none(config):
    assert checkpoint_format(config) is None


def test_reads_the_text_model_of_a_multimodal_one():
    assert checkpoint_format({"text_config": {"quantization_config": {"quant_method": "fp8"}}})(PATH)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"quant_method": "novel"}, "quant_method = 'novel' is not one whose bytes are known here"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quant_algo = 'MIXED_PRECISION'"),
        (compressed({"num_bits": 8, "strategy": "attn_head"}), "strategy = 'attn_head'"),
    ],
)
def test_refuses_what_it_cannot_count(given, words):
    with pytest.raises(ConfigError, match="--dtype fp8, int8, int4") as refused:
        checkpoint_format({"quantization_config": given})
    assert words in str(refused.value)
