"""The real vllm-ascend latent attention: its projection leaves its operator, and its values stay."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from examples.tiny_checkpoint import write_config
from tests.support.ranks import free_port
from tests.vllm_ascend.support import latent

pytestmark = pytest.mark.timeout(600)  # a process imports vLLM, over a stub that is built first


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("model"), "deepseek_v3")


def step(folder, size):
    """One eager decode step: the layer's result, and the width of what its operator writes."""
    with latent.engine(folder, size) as vllm_config:
        layer = latent.Attention()
        with latent.decode_step(vllm_config):
            result = layer(*latent.inputs())
            layer.o_proj.weight.zero_()
            return result.clone(), layer(*latent.inputs()), layer.mla_attn.hidden_size


def both_ways(folder):
    return step(folder, 0), step(folder, 2)


def test_keeps_the_values_to_the_bit_and_projects_after_the_operator(npu_process, model):
    (inside, _, width), (after, without_projection, hoisted_width) = npu_process(both_ways, model)
    assert inside.equal(after)
    assert (width, hoisted_width) == (latent.HIDDEN, latent.HEADS * latent.VALUE)
    assert not inside.equal(latent.inputs()[1])  # attention adds something
    assert without_projection.equal(latent.inputs()[1])  # and all of it goes through the projection


def sharded(folder, rank, port):
    """A rank's step, whole and shared by two; its weight's class and shard, and the error unhoisted."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    options = {"oproj_tensor_parallel_size": 2, "inner_backend": "eager", "expected_sites": 1}
    found = []
    for size in (0, 2):
        torch.compiler.reset()
        with latent.engine(folder, size) as vllm_config:
            layer = latent.Attention()
            positions, hidden_states = latent.inputs()
            with latent.decode_step(vllm_config):
                whole = layer(positions, hidden_states + rank)
            compiled = torch.compile(layer, backend="oproj_npu", fullgraph=True, options=options)
            with latent.decode_step(vllm_config):
                try:
                    found.append((whole, compiled(positions, hidden_states + rank)))
                except Exception as error:  # the test says which it must be
                    found.append(str(error))
    weight = layer.o_proj.weight
    return *found, type(weight).__name__, tuple(weight.shard.tensor.shape)


def test_the_hoisted_projection_is_found_and_shared_by_two_ranks(npu_process, model):
    port = free_port()
    with ThreadPoolExecutor() as pool:
        ranks = list(pool.map(lambda rank: npu_process(sharded, model, rank, port), range(2)))
    for unhoisted, (whole, shared), kind, shard in ranks:
        assert "expected_sites" in unhoisted
        assert shared.allclose(whole, atol=1e-5)
        assert (kind, shard) == ("ReleasedParameter", (latent.HIDDEN, latent.HEADS * latent.VALUE // 2))
    assert not ranks[0][1][0].allclose(ranks[1][1][0], atol=1e-1)  # each rank has rows of its own


def refusals(folder):
    """The errors of layers that differ from what is known, by how."""
    from importlib import metadata
    from unittest.mock import patch

    import vllm_ascend.ops  # noqa: F401  (in the order in which its modules can be imported)
    from vllm_ascend.attention import mla_v1

    from oproj_pass.integrations.vllm import hoist

    def error(**additional):
        with latent.engine(folder, 2, **additional):
            try:
                latent.Attention()
            except Exception as refused:  # the test says which it must be
                return f"{type(refused).__name__}: {refused}"

    class OtherImpl(mla_v1.AscendMLAImpl):
        pass

    found = {
        "prefetch": error(weight_prefetch_config={"enabled": True}),
        "sharded otherwise": error(layer_sharding=["q_b_proj", "o_proj"]),
    }
    with patch.object(hoist, "version", lambda name: metadata.version(name).replace("0.23", "0.24")):
        found["release"] = error()
    with patch.object(mla_v1.AscendMLABackend, "get_impl_cls", staticmethod(lambda: OtherImpl)):
        found["implementation"] = error()
    with patch.object(latent.Projection, "custom_op", OtherImpl, create=True):
        found["exchange"] = error()
    return found


def test_refuses_a_layer_that_is_not_the_known_one_and_says_why(npu_process, model):
    found = npu_process(refusals, model)
    for message in found.values():
        assert message.startswith(f"ConfigError: {latent.PREFIX}.o_proj is called inside one operator")
        assert "or set finegrained_tp_config.oproj_tensor_parallel_size to 0" in message
    assert "of vllm-ascend 0.23.0, not of 0.24.0" in found["release"]
    assert "OtherImpl" in found["implementation"]
    assert "exchanges its input already" in found["exchange"]
    assert "weight_prefetch_config" in found["prefetch"]
    assert "layer_sharding" in found["sharded otherwise"]
