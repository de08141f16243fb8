"""A loaded slice that its quantisation method turned round, copied or took away."""

import pytest

from tests.vllm.support.layers import IN, OUT, build_layer
from tests.vllm.support.process import run_ranks
from tests.vllm.support.quantised import scheme


def processed_facts(rank):
    """By what a quantisation method does to a loaded slice: where the layer's shard is cut; a refusal."""
    import types

    import torch
    from torch.nn import Parameter
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    full = torch.randn(OUT, IN)
    mine = full[:, IN // 2 :]
    assert mine.shape == mine.t().shape  # the shape says nothing

    def outcome(process, full=full):
        method = UnquantizedLinearMethod()
        method.process_weights_after_loading = process
        config = types.SimpleNamespace(
            get_quant_method=lambda *_, **__: method, online_quantization_config=None
        )
        layer = build_layer(1, "model.layers.0.self_attn.o_proj", config, params_dtype=torch.float32)
        layer.weight.weight_loader(layer.weight, full)
        try:
            layer.quant_method.process_weights_after_loading(layer)
        except ValueError as error:
            return str(error)
        shard = layer.weight.shard
        return tuple(layer.weight.shape), torch.equal(shard.tensor, mine), torch.equal(shard.tensor, mine.t())

    def keep(layer):
        layer.weight = Parameter(layer.weight.data, requires_grad=False)

    def copy(layer):
        layer.weight.data = layer.weight.data.clone()

    def turn(layer):
        layer.weight = Parameter(layer.weight.data.t(), requires_grad=False)

    def turn_into_a_copy(layer):
        layer.weight.data = layer.weight.data.t().contiguous()

    def convert(layer):
        layer.weight.data = layer.weight.data.double()

    def pack(layer):
        layer.weight = None

    steps = (keep, copy, turn, turn_into_a_copy, convert, pack)
    symmetric = torch.zeros(OUT, IN)
    return {step.__name__: outcome(step) for step in steps} | {"symmetric": outcome(copy, symmetric)}


def packing_facts(rank):
    """What becomes of int8 on vLLM's own kernel for a CPU, oneDNN's."""
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
        CompressedTensorsConfig,
    )

    group = scheme(0, "int", "channel", "token")
    group["input_activations"]["symmetric"] = False  # or a CPU with AMX takes another kernel
    config = CompressedTensorsConfig.from_config(
        {"format": "int-quantized", "config_groups": {"0": group}, "ignore": []}
    )
    with set_current_vllm_config(VllmConfig()):
        layer = build_layer(0, "model.layers.0.self_attn.o_proj", config, params_dtype=torch.float32)
        try:
            layer.quant_method.process_weights_after_loading(layer)
        except ValueError as error:
            return str(error)
    return None


@pytest.fixture(scope="module")
def processed():
    (facts,) = run_ranks(processed_facts, world=1)
    return facts


@pytest.mark.parametrize("step", ["keep", "copy"])
def test_a_square_slice_that_was_kept_is_cut_as_it_was_loaded(processed, step):
    assert processed[step] == ((OUT, IN), True, False)


@pytest.mark.parametrize("step", ["turn", "turn_into_a_copy"])
def test_a_square_slice_that_was_turned_round_is_cut_along_its_other_dimension(processed, step):
    assert processed[step] == ((IN, OUT), False, True)


@pytest.mark.parametrize("step", ["convert", "symmetric"])
def test_a_square_slice_that_may_have_been_turned_round_is_refused(processed, step):
    assert "K's 2 parts cannot be told apart" in processed[step]


def test_a_slice_that_was_taken_away_is_refused(processed):
    assert processed["pack"].startswith(
        "model.layers.0.self_attn.o_proj.weight: UnquantizedLinearMethod took"
    )


def test_int8_on_vllms_kernel_for_a_cpu_is_refused_as_no_graph_shows_its_weight():
    (refusal,) = run_ranks(packing_facts, world=1)
    assert "CompressedTensorsLinearMethod took the loaded slice away" in refusal
