"""torchair's real converters lower a rewritten decode step to GE: which operators, in which order, over whom.

Two tiny decoders of transformers, grouped-query and multi-head latent attention, in bfloat16, on rank 2 of 4,
whose group is the ranks 2 and 3.
"""

from collections import Counter

import pytest
import torch.distributed as dist
from torch import nn

from tests.ascend.support.decode import BATCH, HIDDEN, IN_FEATURES, LAYERS, decode_step, decoder
from tests.ascend.support.lowering import lowered, of_type, way_back, without_layout

RANKS = [2, 3]
SIZE = len(RANKS)
FUSED_FEATURES = 64


def group_of_two():
    import torchair  # noqa: F401
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("cpu:fake,npu:fake", store=FakeStore(), rank=2, world_size=4)
    return dist.new_group(RANKS)


def shard_all(group):
    from oproj_pass.passes import npu_pass

    return npu_pass(group, expected_sites=LAYERS)


def lower_three_ways(kind):
    """Without the pass, with it, and with it over weights of which the rank holds only its slices."""
    group = group_of_two()
    held = hold_slices_only(decoder(kind), group)
    models = (decoder(kind), None), (decoder(kind), shard_all(group)), (held, shard_all(group))
    return [lowered(model, decode_step(kind), custom_pass) for model, custom_pass in models]


def hold_slices_only(model, group):
    from torch.nn.utils import parametrize

    from oproj_pass.passes import WeightShard

    for layer in model.model.layers:
        projection = layer.self_attn.o_proj
        parametrize.register_parametrization(projection, "weight", WeightShard(1, group), unsafe=True)
    return model


class FusedAttention(nn.Module):
    """One layer with Ascend's decode kernel, 4 query heads on 2 cached ones."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 128, bias=False)
        self.o_proj = nn.Linear(FUSED_FEATURES, HIDDEN, bias=True)

    def forward(self, x):
        import torch

        q, k, v = self.qkv(x).split([64, 32, 32], -1)
        attended, _ = torch.ops.npu.npu_fused_infer_attention_score(
            q, k, v, num_heads=4, num_key_value_heads=2, scale=0.25, input_layout="BSH"
        )
        return self.o_proj(attended)


def lower_fused(dynamic):
    import torch

    from oproj_pass.passes import npu_pass

    model = FusedAttention().eval().requires_grad_(False).to(torch.bfloat16).npu()
    inputs = {"x": torch.randn(BATCH, 1, HIDDEN, dtype=torch.bfloat16).npu()}
    return lowered(model, inputs, npu_pass(group_of_two(), expected_sites=1), dynamic=dynamic)


@pytest.fixture(scope="module")
def fused(torchair_process):
    return torchair_process(lower_fused, False)


@pytest.fixture(scope="module", params=["gqa", "mla"])
def ways(request, torchair_process):
    """The kind of attention, and its operators in three ways."""
    return request.param, *torchair_process(lower_three_ways, request.param)


@pytest.fixture(scope="module")
def sharded(ways):
    return ways[2]


def test_adds_an_exchange_a_product_and_a_reduction_a_site_and_nothing_else_but_layout(ways):
    _, plain, sharded, _ = ways
    before, after = (Counter(operator.type for operator in operators) for operators in (plain, sharded))
    new = {"HcomAllToAll": LAYERS, "MatMul": LAYERS, "HcomReduceScatter": LAYERS}
    layout = {"Const": 8, "Identity": 3, "Reshape": 3, "Transpose": 1, "StridedSliceV2": 1}
    assert after - before == new | {name: count * LAYERS for name, count in layout.items()}
    assert before - after == {"BatchMatMul": LAYERS}


def test_exchanges_then_multiplies_then_reduces(sharded):
    reductions = of_type(sharded, "HcomReduceScatter")
    assert len(reductions) == LAYERS
    for reduction in reductions:
        way = without_layout(way_back(sharded, reduction))
        assert way[-3:] == ["HcomAllToAll", "MatMul", "HcomReduceScatter"]


def test_issues_the_collectives_layer_by_layer(sharded):
    issued = [operator.type for operator in of_type(sharded, "HcomAllToAll", "HcomReduceScatter")]
    assert issued == ["HcomAllToAll", "HcomReduceScatter"] * LAYERS


def test_packs_the_slices_of_each_rank_together_before_the_exchange(sharded):
    """[tokens, ranks, K/N] becomes [ranks, tokens, K/N]; torchair drops a permutation that is not copied."""
    constants = {operator.name: operator.value for operator in of_type(sharded, "Const")}
    for exchange in of_type(sharded, "HcomAllToAll"):
        *_, transposition, copy, flat, _ = way_back(sharded, exchange)
        assert [transposition.type, copy.type, flat.type] == ["Transpose", "Identity", "Reshape"]
        assert constants[transposition.inputs[1]] == [1, 0, 2]


def test_the_shapes_are_those_of_the_contract(ways):
    kind, _, sharded, _ = ways
    features = IN_FEATURES[kind]
    assert [o.shape for o in of_type(sharded, "HcomAllToAll")] == [(BATCH * features,)] * LAYERS
    assert [o.shape for o in of_type(sharded, "HcomReduceScatter")] == [(BATCH, HIDDEN)] * LAYERS
    by_name = {operator.name: operator for operator in sharded}
    for reduction in of_type(sharded, "HcomReduceScatter"):
        product = by_name[reduction.inputs[0]]
        rows, weight = (by_name[name] for name in product.inputs[:2])
        assert product.shape == (SIZE * BATCH, HIDDEN)
        assert (rows.shape, weight.shape) == ((SIZE * BATCH, features // SIZE), (features // SIZE, HIDDEN))


def test_the_weight_is_a_slice_of_the_models_own(sharded):
    by_name = {operator.name: operator for operator in sharded}
    for product in of_type(sharded, "MatMul"):
        transposed = by_name[product.inputs[1]]
        way = way_back(sharded, transposed)
        assert [operator.type for operator in way] == ["Data", "StridedSliceV2", "Transpose"]


def test_both_collectives_run_over_the_groups_ranks(sharded):
    for operator in of_type(sharded, "HcomAllToAll", "HcomReduceScatter"):
        assert operator.attributes["group"].endswith(f"rank_list={','.join(map(str, RANKS))}")
    for reduction in of_type(sharded, "HcomReduceScatter"):
        assert (reduction.attributes["rank_size"], reduction.attributes["reduction"]) == (SIZE, "sum")


def test_a_presharded_weight_enters_as_it_is_and_saves_the_slicing(ways):
    kind, _, sharded, held = ways
    before, after = (Counter(operator.type for operator in operators) for operators in (sharded, held))
    assert before - after == {"StridedSliceV2": LAYERS, "Const": 4 * LAYERS}
    assert after - before == {}
    by_name = {operator.name: operator for operator in held}
    for product in of_type(held, "MatMul"):
        data, transposition = way_back(held, by_name[product.inputs[1]])
        assert [data.type, transposition.type] == ["Data", "Transpose"]
        assert transposition.shape == (IN_FEATURES[kind] // SIZE, HIDDEN)


def test_ascends_own_decode_attention_counts_as_attention(fused):
    (reduction,) = of_type(fused, "HcomReduceScatter")
    assert without_layout(way_back(fused, reduction))[-4:] == [
        "FusedInferAttentionScore", "HcomAllToAll", "MatMul", "HcomReduceScatter",
    ]  # fmt: skip


def test_adds_the_bias_once_after_the_reduction(fused):
    (addition,) = of_type(fused, "Add")
    assert without_layout(way_back(fused, addition))[-2:] == ["HcomReduceScatter", "Add"]


def test_an_older_cann_exchanges_by_counts(npu_process):
    operators = npu_process(lower_fused, False, cann="8.1.RC1", timeout=600).value
    (exchange,) = of_type(operators, "HcomAllToAllV")
    constants = {operator.name: operator.value for operator in of_type(operators, "Const")}
    count = BATCH * FUSED_FEATURES // SIZE
    assert [constants[name] for name in exchange.inputs[1:]] == [[count, count], [0, count]] * 2
    assert of_type(operators, "HcomAllToAll") == []


def test_an_open_batch_exchanges_by_counts_too(torchair_process):
    operators = torchair_process(lower_fused, True)
    issued = [operator.type for operator in operators if operator.type.startswith("Hcom")]
    assert issued == ["HcomAllToAllV", "HcomReduceScatter"]
