"""torchair lowers column and grid sharding through the backend, exchanged partial sums by the custom pass."""

import pytest

from tests.ascend.support.decode import HIDDEN, IN_FEATURES, LAYERS, decode_step, decoder
from tests.ascend.support.lowering import lower_by_backend, lowered, of_type, way_back, without_layout

SIZE = 2
ISSUED = {
    "column": ["HcomAllGather", "HcomAllToAll"],
    "exchange": ["HcomAllToAll", "HcomAllToAll"],
    "grid": ["HcomAllToAll", "HcomAllGather", "HcomReduceScatter", "HcomAllToAll"],
}
ALONG_K, ALONG_H = "0,2", "2,3"
RANKS = {"column": ["2,3"] * 2, "exchange": ["2,3"] * 2, "grid": [ALONG_K, ALONG_H, ALONG_K, ALONG_H]}
FEATURES = IN_FEATURES["gqa"]
PARTS = {
    "column": (FEATURES, HIDDEN // SIZE),
    "exchange": (FEATURES // SIZE, HIDDEN),
    "grid": (FEATURES // SIZE, HIDDEN // SIZE),
}


def lower_chosen(chosen):
    """On rank 2 of 4, which share the weights by twos, or as a grid of two by two."""
    if chosen != "exchange":
        size = SIZE**2 if chosen == "grid" else SIZE
        return lower_by_backend("gqa", oproj_tensor_parallel_size=size, strategy=chosen)
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from oproj_pass.passes import npu_pass

    dist.init_process_group("cpu:fake,npu:fake", store=FakeStore(), rank=2, world_size=4)
    custom_pass = npu_pass(dist.new_group([2, 3]), expected_sites=LAYERS, reduce="exchange")
    return lowered(decoder("gqa"), decode_step("gqa"), custom_pass)


@pytest.fixture(scope="module", params=list(ISSUED))
def way(request, torchair_process):
    """What is chosen, and the operators."""
    return request.param, torchair_process(lower_chosen, request.param)


def issued(operators):
    return [operator for operator in operators if operator.type.startswith("Hcom")]


def test_issues_the_strategys_collectives_layer_by_layer_over_the_groups_ranks(way):
    chosen, operators = way
    found = issued(operators)
    assert [operator.type for operator in found] == ISSUED[chosen] * LAYERS
    ranks = [operator.attributes["group"].rpartition("rank_list=")[2] for operator in found]
    assert ranks == RANKS[chosen] * LAYERS


def test_multiplies_a_part_of_the_weight_along_the_strategys_axis_between_the_two(way):
    chosen, operators = way
    middle = len(ISSUED[chosen]) // 2
    arrives, leaves = ISSUED[chosen][middle - 1 : middle + 1]
    by_name = {operator.name: operator for operator in operators}
    ends = [one for number, one in enumerate(issued(operators)) if number % (2 * middle) == middle]
    for end in ends:
        back = way_back(operators, end)
        assert without_layout(back)[-3:] == [arrives, "MatMul", leaves]
        product = of_type(back, "MatMul")[-1]
        assert by_name[product.inputs[1]].shape == PARTS[chosen]
