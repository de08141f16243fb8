"""torchair lowers column sharding and exchanged partial sums, through the backend and the custom pass."""

import pytest

from tests.ascend.support.decode import HIDDEN, IN_FEATURES, LAYERS, decode_step, decoder
from tests.ascend.support.lowering import lower_by_backend, lowered, of_type, way_back, without_layout

SIZE = 2
ISSUED = {
    "column": ["HcomAllGather", "HcomAllToAll"],
    "exchange": ["HcomAllToAll", "HcomAllToAll"],
}


def lower_chosen(chosen):
    """Column sharding through the backend, the exchange through the custom pass."""
    if chosen == "column":
        return lower_by_backend("gqa", oproj_tensor_parallel_size=SIZE, strategy="column")
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from oproj_pass.passes import npu_pass

    dist.init_process_group("cpu:fake,npu:fake", store=FakeStore(), rank=2, world_size=4)
    custom_pass = npu_pass(dist.new_group([2, 3]), expected_sites=LAYERS, reduce="exchange")
    return lowered(decoder("gqa"), decode_step("gqa"), custom_pass)


@pytest.fixture(scope="module", params=list(ISSUED))
def way(request, npu_process):
    """What is chosen, and the operators."""
    return request.param, npu_process(lower_chosen, request.param, timeout=600).value


def test_issues_the_strategys_collectives_layer_by_layer_over_the_groups_ranks(way):
    chosen, operators = way
    issued = [operator for operator in operators if operator.type.startswith("Hcom")]
    assert [operator.type for operator in issued] == ISSUED[chosen] * LAYERS
    assert all(operator.attributes["group"].endswith("rank_list=2,3") for operator in issued)


def test_multiplies_a_part_of_the_weight_along_the_strategys_axis_between_the_two(way):
    chosen, operators = way
    first, second = ISSUED[chosen]
    features = IN_FEATURES["gqa"]
    part = (features, HIDDEN // SIZE) if chosen == "column" else (features // SIZE, HIDDEN)
    by_name = {operator.name: operator for operator in operators}
    ways = [without_layout(way_back(operators, one)) for one in of_type(operators, second)]
    assert [way[-3:] for way in ways if way[-2] == "MatMul"] == [[first, "MatMul", second]] * LAYERS
    between = [
        product
        for product in of_type(operators, "MatMul")
        if without_layout(way_back(operators, product))[-2:] == [first, "MatMul"]
    ]
    assert [by_name[product.inputs[1]].shape for product in between] == [part] * LAYERS
