"""The fused second half as the real torchair lowers it, over the communicator that torch_npu names."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from oproj_pass.backend.ascend import current_device, hccl_comm_name
from oproj_pass.passes import Exchange, ShardOProj, run_passes
from oproj_pass.passes.ascend.mc2 import FuseMatmulReduceScatter
from oproj_pass.passes.ascend.mc2_limits import Device
from oproj_pass.passes.graph.provenance import placeholders
from tests.support.fake import part_of

SIZE, LAYERS, HEADS, HEAD_DIM, HIDDEN = 4, 2, 8, 128, 64


class Attention(nn.Module):
    """Of operations that torchair can lower."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HEADS * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN)

    def forward(self, x):
        q, k, v = (part.view(-1, HEADS, HEAD_DIM).transpose(0, 1) for part in self.qkv(x).chunk(3, -1))
        y = torch.softmax(q @ k.transpose(1, 2), -1) @ v
        return x + self.o_proj(y.transpose(0, 1).reshape(-1, HEADS * HEAD_DIM))


def facts():
    """What torch_npu says, and the operators that torchair makes without fusing and with it."""
    dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=SIZE)
    gloo = dist.new_group([0], backend="gloo", use_local_synchronization=True)
    return SimpleNamespace(
        device=current_device(),
        hccl_name=hccl_comm_name(dist.group.WORLD.group_name),
        gloo_name=hccl_comm_name(gloo.group_name),
        plain=lower(fused=False),
        fused=lower(fused=True),
    )


def lower(fused):
    import torchair
    from torchair._ge_concrete_graph.fx2ge_converter import GeConcreteGraph

    found = []

    def keep_and_stop(graph, *_, **__):
        found.extend((node.type, dict(node.attr.items())) for node in graph.graph._proto.op)
        raise InterruptedError("there is no graph engine to compile it")

    def shard_and_lower(gm, example_inputs):
        exchange = Exchange(SIZE, dist.group.WORLD.group_name)
        sharding = ShardOProj(exchange)
        fusing = [FuseMatmulReduceScatter(sharding.regions, current_device(), hccl_comm_name)]
        record, *_ = run_passes(gm, example_inputs, [sharding, *(fusing if fused else [])])
        inputs = dict(zip(placeholders(gm), example_inputs, strict=True))
        for node, cut in record.tensors.items():
            inputs[node] = part_of(cut, inputs[node], 0)
        return torchair.get_npu_backend()(gm, list(inputs.values()))

    GeConcreteGraph.optimize_graph_without_runtime = keep_and_stop
    torch._dynamo.reset()
    model = nn.Sequential(*(Attention() for _ in range(LAYERS))).to(torch.bfloat16).npu()
    with torch.no_grad(), pytest.raises(Exception, match="no graph engine"):
        torch.compile(model, backend=shard_and_lower)(torch.zeros(3, HIDDEN, dtype=torch.bfloat16).npu())
    return [(kind, {name: value_of(attr) for name, attr in attrs.items()}) for kind, attrs in found]


def value_of(attr):
    return {"s": attr.s.decode(errors="replace"), "i": attr.i, "b": attr.b}.get(attr.WhichOneof("value"))


@pytest.fixture(scope="module", params=["Ascend910B3", "Ascend950PR_9599"])
def chip(request, npu_process):
    return request.param, npu_process(facts, soc=request.param).value


def count(operators, *kinds):
    return sum(kind in kinds for kind, _ in operators)


def test_lowers_each_site_to_the_fused_operator_of_the_chip(chip):
    soc, found = chip
    expected = "MatmulReduceScatter" if soc == "Ascend910B3" else "MatmulReduceScatterV2"
    assert count(found.plain, "HcomReduceScatter") == count(found.fused, expected) == LAYERS
    assert count(found.fused, "HcomReduceScatter") == count(found.plain, expected) == 0


def test_replaces_one_product_a_site_and_keeps_the_exchange(chip):
    _, found = chip
    assert count(found.plain, "MatMul") - count(found.fused, "MatMul") == LAYERS
    assert count(found.plain, "HcomAllToAll") == count(found.fused, "HcomAllToAll") == LAYERS


def test_reduces_over_the_communicator_of_the_exchange(chip):
    _, found = chip
    exchange = next(attributes["group"] for kind, attributes in found.fused if kind == "HcomAllToAll")
    for kind, attributes in found.fused:
        if kind.startswith("MatmulReduceScatter"):
            assert (attributes["group"], attributes["rank_size"]) == (exchange, SIZE)
            assert (attributes["reduce_op"], attributes["is_trans_a"]) == ("sum", False)


def test_knows_the_chip_its_software_and_its_communicators(chip):
    soc, found = chip
    assert found.device == Device(soc, "9.1.0")
    assert found.hccl_name
    assert found.gloo_name is None
