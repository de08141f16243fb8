"""The backend with torchair inside lowers to what the custom pass does over pre-sharded weights."""

import pytest

from tests.ascend.support.decode import HIDDEN, IN_FEATURES, LAYERS
from tests.ascend.support.lowering import lower_by_backend, of_type, way_back, without_layout

SIZE = 2


def lower_through_the_backend(kind):
    return lower_by_backend(kind, oproj_tensor_parallel_size=SIZE, expected_sites=LAYERS)


@pytest.fixture(scope="module")
def operators(torchair_process):
    return torchair_process(lower_through_the_backend, "gqa")


def test_exchanges_multiplies_and_reduces_layer_by_layer(operators):
    issued = [operator.type for operator in operators if operator.type.startswith("Hcom")]
    assert issued == ["HcomAllToAll", "HcomReduceScatter"] * LAYERS
    for reduction in of_type(operators, "HcomReduceScatter"):
        assert without_layout(way_back(operators, reduction))[-3:] == [
            "HcomAllToAll", "MatMul", "HcomReduceScatter",
        ]  # fmt: skip


def test_runs_over_the_groups_ranks(operators):
    for operator in of_type(operators, "HcomAllToAll", "HcomReduceScatter"):
        assert operator.attributes["group"].endswith("rank_list=2,3")


def test_the_weights_inputs_are_the_ranks_slices(operators):
    by_name = {operator.name: operator for operator in operators}
    for reduction in of_type(operators, "HcomReduceScatter"):
        weight = by_name[by_name[reduction.inputs[0]].inputs[1]]
        way = way_back(operators, weight)
        assert [operator.type for operator in way] == ["Data", "Transpose"]
        assert weight.shape == (IN_FEATURES["gqa"] // SIZE, HIDDEN)


def test_packs_the_slices_of_each_rank_together_before_the_exchange(operators):
    constants = {operator.name: operator.value for operator in of_type(operators, "Const")}
    for exchange in of_type(operators, "HcomAllToAll"):
        transpositions = [o for o in way_back(operators, exchange) if o.type == "Transpose"]
        assert constants[transpositions[-1].inputs[1]] == [1, 0, 2]
