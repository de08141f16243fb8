"""torchair lowers a projection in two steps as one site, by the backend and by the custom pass."""

import pytest

from tests.ascend.support.lowering import (
    by_backend,
    fake_world,
    lower,
    lowered,
    of_type,
    way_back,
    without_layout,
)
from tests.support.grouped import GROUPS, HIDDEN, RANK

SIZE, ROWS = 2, 6
FEATURES = GROUPS * RANK


def lower_all():
    """The operators by how the sharding came in, and of what spelling."""
    import torch
    import torch.distributed as dist
    import torchair  # noqa: F401

    from oproj_pass.passes import npu_pass
    from tests.ascend.support.grouped import Grouped
    from tests.support.grouped import heads_of

    fake_world()
    custom_pass = npu_pass(dist.new_group([2, 3]), expected_sites=1)
    inputs = {"x": heads_of(2, 3).npu()}
    by_pass = {}
    for spelling in ("bmm", "einsum"):
        torch._dynamo.reset()
        by_pass[f"pass, {spelling}"] = lowered(Grouped(spelling).npu(), inputs, custom_pass)
    torch._dynamo.reset()
    options = {"oproj_tensor_parallel_size": SIZE, "expected_sites": 1}
    return {"backend": lower(by_backend(Grouped().npu(), "npu", **options), inputs), **by_pass}


WAYS = ["backend", "pass, bmm", "pass, einsum"]


@pytest.fixture(scope="module")
def all_operators(torchair_process):
    return torchair_process(lower_all)


@pytest.fixture(params=WAYS)
def operators(request, all_operators):
    return all_operators[request.param]


def test_exchanges_heads_multiplies_twice_and_sums_once_over_the_groups_ranks(operators):
    issued = [operator for operator in operators if operator.type.startswith("Hcom")]
    assert [operator.type for operator in issued] == ["HcomAllToAll", "HcomReduceScatter"]
    assert all(operator.attributes["group"].endswith("rank_list=2,3") for operator in issued)
    way = without_layout(way_back(operators, issued[1]))
    assert way[-4:] == ["HcomAllToAll", "BatchMatMul", "MatMul", "HcomReduceScatter"]


def test_multiplies_a_ranks_groups_of_both_weights(operators):
    by_name = {operator.name: operator for operator in operators}
    (total,) = of_type(operators, "HcomReduceScatter")
    grouped, last = [one for one in way_back(operators, total) if one.type.endswith("MatMul")][-2:]
    assert by_name[grouped.inputs[1]].shape == (GROUPS // SIZE, 16, RANK)
    assert by_name[last.inputs[1]].shape == (FEATURES // SIZE, HIDDEN)
    assert (last.shape, total.shape) == ((SIZE * ROWS, HIDDEN), (ROWS, HIDDEN))
