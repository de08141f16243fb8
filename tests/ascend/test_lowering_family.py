"""torchair lowers all roles at once, through the backend: a decoder of 97 words, its ranks in pairs."""

import pytest

from tests.ascend.support.decode import BATCH, COMMON, HIDDEN, LAYERS
from tests.ascend.support.lowering import lower_by_backend, of_type, way_back, without_layout

SIZE = 2
ROWS = SIZE * BATCH
VOCABULARY = COMMON["vocab_size"]
PART = -(-VOCABULARY // SIZE)
INTERMEDIATE = COMMON["intermediate_size"]


def lower_all_roles():
    from oproj_pass.passes import ROLES

    return lower_by_backend("gqa", **{f"{role}_tensor_parallel_size": SIZE for role in ROLES})


@pytest.fixture(scope="module")
def operators(torchair_process):
    return torchair_process(lower_all_roles)


@pytest.fixture(scope="module")
def by_name(operators):
    return {operator.name: operator for operator in operators}


def test_issues_the_collectives_of_all_roles_in_one_order_over_the_groups_ranks(operators):
    issued = [operator for operator in operators if operator.type.startswith("Hcom")]
    assert [operator.type for operator in issued] == [
        "HcomAllToAll", "HcomReduceScatter",
        *["HcomAllToAll", "HcomReduceScatter", "HcomAllGather", "HcomReduceScatter"] * LAYERS,
        "HcomAllGather", "HcomAllToAll",
    ]  # fmt: skip
    assert all(operator.attributes["group"].endswith("rank_list=2,3") for operator in issued)


def test_an_embedding_looks_ids_up_in_its_part_and_masks_those_of_other_ranks(operators, by_name):
    (lookup,) = of_type(operators, "GatherV2")
    assert by_name[lookup.inputs[0]].shape == (PART, HIDDEN)
    ids = way_back(operators, by_name[lookup.inputs[1]])
    assert without_layout(ids) == [
        "Data", "Unsqueeze", "Sub", "ConcatV2", "MaskedFill", "HcomAllToAll", "MaskedFill",
    ]  # fmt: skip
    found = way_back(operators, of_type(operators, "HcomReduceScatter")[0])
    assert without_layout(found) == ["Data", "GatherV2", "MaskedFill", "HcomReduceScatter"]
    assert found[-1].shape == (BATCH, HIDDEN)


def test_an_embedding_counts_the_ids_from_the_first_row_of_each_rank(operators, by_name):
    assert [by_name[one.inputs[1]].value for one in of_type(operators, "Sub")] == ["0", str(PART)]


def test_an_mlp_gathers_rows_once_and_reduces_the_product_of_its_part(operators, by_name):
    sums = of_type(operators, "HcomReduceScatter")[2::2]
    assert len(sums) == LAYERS
    for reduction in sums:
        way = way_back(operators, reduction)
        gather, gate, down, _ = [one for one in way if one.type.startswith(("Hcom", "MatMul"))][-4:]
        assert without_layout(way)[-7:] == [
            "HcomAllGather", "MatMul", "Swish", "Mul", "Cast", "MatMul", "HcomReduceScatter",
        ]  # fmt: skip
        firsts = [one for one in of_type(operators, "MatMul") if gather in way_back(operators, one)[-3:]]
        parts = [by_name[one.inputs[1]].shape for one in (*firsts, down)]
        part = INTERMEDIATE // SIZE
        assert gate in firsts
        assert parts == [(HIDDEN, part), (HIDDEN, part), (part, HIDDEN)]
        assert gather.shape == down.shape == (ROWS, HIDDEN)


def test_a_head_multiplies_its_part_of_the_vocabulary_and_drops_the_padding(operators, by_name):
    (end,) = of_type(operators, "NetOutput")
    way = way_back(operators, by_name[end.inputs[-1]])
    (product,), (exchange,) = of_type(way, "MatMul"), of_type(way, "HcomAllToAll")
    assert without_layout(way)[-3:] == ["HcomAllGather", "MatMul", "HcomAllToAll"]
    assert by_name[product.inputs[1]].shape == (HIDDEN, PART)
    assert exchange.shape == (ROWS * PART,)
    (words,) = of_type(way, "StridedSliceV2")
    assert words.shape == (BATCH, VOCABULARY)
