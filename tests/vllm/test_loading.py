"""What a rank reads of a layer, by vLLM's own loaders: its slice of K and of the scales that follow K."""

import pytest

from tests.vllm.support.layers import IN, OUT, build_layer
from tests.vllm.support.process import run_ranks

BLOCK = 128


def dense_facts():
    import torch

    from examples.vllm_on_cpu import prepare

    prepare()
    facts = {}
    full, newer = torch.randn(OUT, IN), torch.randn(OUT, IN)
    for rank in (0, 1):
        layer = build_layer(rank, "model.layers.0.self_attn.o_proj", params_dtype=torch.float32)
        facts[f"loading, rank {rank}"] = tuple(layer.weight.shape)
        layer.weight.weight_loader(layer.weight, full)
        layer.quant_method.process_weights_after_loading(layer)
        mine = slice(rank * IN // 2, (rank + 1) * IN // 2)
        shard = layer.weight.shard.tensor
        facts[f"loaded, rank {rank}"] = torch.equal(shard, full[:, mine])
        facts[f"after, rank {rank}"] = (tuple(layer.weight.shape), layer.weight.untyped_storage().nbytes())
        facts[f"layer, rank {rank}"] = (layer.tp_rank, layer.tp_size, layer.input_size_per_partition)
        layer.weight.data.copy_(newer)
        facts[f"loaded again, rank {rank}"] = torch.equal(shard, newer[:, mine])
    for prefix in ("model.layers.0.mlp.down_proj", "model.layers.0.linear_attn.out_proj", "audio_projector"):
        facts[prefix] = tuple(build_layer(0, prefix, params_dtype=torch.float32).weight.shape)
    return facts


def exchanging_facts():
    """What becomes of layers that bring an exchange of their own, as vllm-ascend's do."""
    import sys
    import types

    from vllm.model_executor.layers.linear import RowParallelLinear

    from examples.vllm_on_cpu import prepare

    prepare()
    own, other = object(), object()
    groups = types.SimpleNamespace(get_otp_group=lambda: own)
    sys.modules["vllm_ascend.distributed.parallel_state"] = groups

    def built(group, prefix, load_sharded):
        class Exchanging(RowParallelLinear):
            def __init__(self, *args, prefix, **kwargs):
                super().__init__(*args, prefix=prefix, **kwargs)
                self.custom_op = types.SimpleNamespace(comm_group=group)

        try:
            layer = build_layer(0, f"model.layers.0.{prefix}", cls=Exchanging, load_sharded=load_sharded)
        except ValueError as error:
            return str(error)
        return layer.custom_op

    return {
        "in full": built(own, "self_attn.o_proj", False),
        "of another name": built(own, "mixer.o_proj", True),
        "by slice": built(own, "self_attn.o_proj", True),
        "of an MLP": built(own, "mlp.down_proj", False) is not None,
        "over another group": built(other, "self_attn.o_proj", False) is not None,
    }


def block_facts():
    """Float8 weights with a scale a block of 128 x 128."""
    import types
    from unittest.mock import patch

    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.quantization import fp8

    config = fp8.Fp8Config(True, "dynamic", weight_block_size=[BLOCK, BLOCK])
    weight = torch.randn(OUT, IN).to(torch.float8_e4m3fn)
    scales = torch.rand(OUT // BLOCK, IN // BLOCK)
    facts = {}
    vllm_config = VllmConfig()
    object.__setattr__(vllm_config, "model_config", types.SimpleNamespace(dtype=torch.bfloat16))
    no_kernel = patch.object(fp8, "init_fp8_linear_kernel", lambda **_: None)  # not every CPU has one
    with set_current_vllm_config(vllm_config), no_kernel:
        for rank in (0, 1):
            layer = build_layer(rank, "model.layers.0.self_attn.o_proj", config, params_dtype=torch.bfloat16)
            for parameter, full in ((layer.weight, weight), (layer.weight_scale_inv, scales)):
                parameter.weight_loader(parameter, full)
            mine = slice(rank * IN // 2, (rank + 1) * IN // 2)
            blocks = slice(rank * IN // 2 // BLOCK, (rank + 1) * IN // 2 // BLOCK)
            facts[rank] = (
                torch.equal(layer.weight.view(torch.uint8), weight[:, mine].view(torch.uint8)),
                torch.equal(layer.weight_scale_inv, scales[:, blocks]),
            )
    return facts


@pytest.fixture(scope="module")
def dense():
    (facts,) = run_ranks(_without_rank, dense_facts, world=1)
    return facts


def _without_rank(rank, function):
    return function()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_layer_loads_its_ranks_slice_and_shows_the_full_shape(dense, rank):
    assert dense[f"loading, rank {rank}"] == (OUT, IN // 2)
    assert dense[f"loaded, rank {rank}"]
    assert dense[f"after, rank {rank}"] == ((OUT, IN), 0)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_loaded_layer_is_an_unsharded_one_to_vllm(dense, rank):
    assert dense[f"layer, rank {rank}"] == (0, 1, IN)


@pytest.mark.parametrize("rank", [0, 1])
def test_weights_that_are_loaded_again_reach_the_shard(dense, rank):
    assert dense[f"loaded again, rank {rank}"]


@pytest.mark.parametrize(
    "prefix", ["model.layers.0.mlp.down_proj", "model.layers.0.linear_attn.out_proj", "audio_projector"]
)
def test_other_layers_load_in_full(dense, prefix):
    assert dense[prefix] == (OUT, IN)


def test_a_projection_that_the_platform_shares_by_itself_is_not_shared_twice():
    (facts,) = run_ranks(_without_rank, exchanging_facts, world=1)
    for name in ("in full", "of another name"):
        assert "vllm-ascend shares this projection by itself" in facts[name]
    assert facts["in full"].startswith("model.layers.0.self_attn.o_proj:")
    assert facts["by slice"] is None
    assert facts["of an MLP"] is True
    assert facts["over another group"] is True


def test_block_scales_follow_their_weights():
    (facts,) = run_ranks(_without_rank, block_facts, world=1)
    assert facts == {0: (True, True), 1: (True, True)}
