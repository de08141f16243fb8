"""torchair's converters lower a sharded W8A8 projection to QuantBatchMatmul between the collectives.

One attention layer with Ascend's decode kernel and an int8 output projection, on rank 2 of 4 whose group is
the ranks 2 and 3. What travels is int8, and with dynamic scales one float a row beside it.
"""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.ascend.support.lowering import lowered

RANKS = [2, 3]
BATCH, FEATURES, HIDDEN = 4, 64, 32


class Attention(nn.Module):
    """4 query heads on 2 cached ones, then an int8 projection with scales of its kind."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.qkv = nn.Linear(HIDDEN, 128, bias=False, dtype=torch.bfloat16)
        self.o_proj = Dynamic() if kind == "dynamic" else Static()

    def forward(self, x):
        q, k, v = self.qkv(x).split([64, 32, 32], -1)
        attended, _ = torch.ops.npu.npu_fused_infer_attention_score(
            q, k, v, num_heads=4, num_key_value_heads=2, scale=0.25, input_layout="BSH"
        )
        return self.o_proj(attended.reshape(-1, FEATURES))


class Projection(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = constant(torch.randint(-127, 128, (FEATURES, HIDDEN), dtype=torch.int8))
        self.scale = constant(torch.rand(HIDDEN))
        self.bias = constant(torch.randint(-99, 99, (HIDDEN,), dtype=torch.int32))
        self.input_scale = constant(torch.ones(FEATURES, dtype=torch.bfloat16))


def constant(value):
    return nn.Parameter(value, requires_grad=False)


class Dynamic(Projection):
    """Quantised by arithmetic: the stub of CANN has no DynamicQuant, which a graph of it would ask for."""

    def forward(self, x):
        import torch_npu

        scales = torch.max(x.float().abs(), -1)[0] / 127
        q = (x.float() / scales.unsqueeze(-1)).round().to(torch.int8)
        return torch_npu.npu_quant_matmul(
            q, self.weight, self.scale, pertoken_scale=scales, bias=self.bias, output_dtype=torch.bfloat16
        )


class Static(Projection):
    def forward(self, x):
        import torch_npu

        q = torch_npu.npu_quantize(x, self.input_scale, None, torch.qint8, -1, False)
        return torch_npu.npu_quant_matmul(
            q, self.weight, self.scale, bias=self.bias, output_dtype=torch.bfloat16
        )


def lower(kind):
    import torchair  # noqa: F401
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from oproj_pass.passes import npu_pass

    dist.init_process_group("cpu:fake,npu:fake", store=FakeStore(), rank=2, world_size=4)
    group = dist.new_group(RANKS)
    model = Attention(kind).eval().requires_grad_(False).npu()
    inputs = {"x": torch.randn(BATCH, 1, HIDDEN, dtype=torch.bfloat16).npu()}
    plain = lowered(model, inputs)
    torch._dynamo.reset()
    return plain, lowered(model, inputs, npu_pass(group, expected_sites=1))


@pytest.fixture(scope="module", params=["static", "dynamic"])
def operators(request, torchair_process):
    """The kind, and the GE operators without and with the pass."""
    return request.param, *torchair_process(lower, request.param)


def of_type(operators, prefix):
    return [operator for operator in operators if operator.type.startswith(prefix)]


def test_multiplies_the_slices_between_an_exchange_and_a_reduction(operators):
    kind, plain, sharded = operators
    (whole,), (part,) = of_type(plain, "QuantBatchMatmul"), of_type(sharded, "QuantBatchMatmul")
    assert part.type == whole.type == "QuantBatchMatmulV3"
    collectives = [operator.type for operator in sharded if operator.type.startswith("Hcom")]
    gathers = ["HcomAllGather"] if kind == "dynamic" else []
    assert collectives == ["HcomAllToAll", *gathers, "HcomReduceScatter"]
    by_name = {operator.name: operator for operator in sharded}
    rows, weight = (by_name[name] for name in part.inputs[:2])
    assert part.shape == (len(RANKS) * BATCH, HIDDEN)
    assert (rows.shape, weight.shape) == (
        (len(RANKS) * BATCH, FEATURES // len(RANKS)),
        (FEATURES // len(RANKS), HIDDEN),
    )


def test_leaves_the_bias_out_of_the_partial_product(operators):
    _, plain, sharded = operators
    by_name = {operator.name: operator for operator in (*plain, *sharded)}

    def reads_bias(graph):
        (product,) = of_type(graph, "QuantBatchMatmul")
        return [name for name in product.inputs if name in by_name and by_name[name].shape == (HIDDEN,)]

    assert len(reads_bias(plain)) == len(reads_bias(sharded)) + 1


def test_exchanges_every_row_and_feature_once(operators):
    _, _, sharded = operators
    (exchange,) = of_type(sharded, "HcomAllToAll")
    assert exchange.shape == (BATCH * FEATURES,)
    for gather in of_type(sharded, "HcomAllGather"):
        assert gather.shape == (len(RANKS) * BATCH,)


def formats():
    import torch_npu

    from oproj_pass.weights.checks import is_in_tiles

    tiles = torch_npu.empty_with_format((64, 64), dtype=torch.int8, device="npu", acl_format=29)
    return is_in_tiles(torch.zeros(64, 64, dtype=torch.int8).npu()), is_in_tiles(tiles)


def test_knows_a_weight_in_tiles(npu_process):
    assert npu_process(formats).value == (False, True)
