"""torchair lowers a prefill that is split over two ranks: the split, the gathers, the restore, over whom.

A decoder of one layer on rank 2 of 4, whose group is the ranks 2 and 3, with a prompt of 8 rows: four a rank.
"""

import pytest
import torch
import torch.distributed as dist

from tests.ascend.support.decode import COMMON, HIDDEN, decoder
from tests.ascend.support.lowering import lower, of_type, way_back, without_layout
from tests.support.prefill import VOCABULARY, prefill, tokens

ROWS, LOCAL, RANKS = 8, 4, [2, 3]
HEADS = COMMON["num_attention_heads"]


def lower_prefills():
    """By name: whole, split, and split under a symbolic number of rows."""
    import torchair  # noqa: F401

    split = split_over_two("npu")
    return {
        "whole": lower_prefill("npu"),
        "split": lower_prefill(split),
        "symbolic": lower_prefill(split, is_symbolic=True),
    }


def split_over_two(inner_backend):
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import oproj_pass

    dist.init_process_group("cpu:fake,npu:fake", store=FakeStore(), rank=2, world_size=4)
    return oproj_pass.context_parallel(dist.new_group(RANKS), inner_backend=inner_backend)


def lower_prefill(backend, *, is_symbolic=False):
    torch._dynamo.reset()
    ids = torch.arange(ROWS)[None].npu()
    if is_symbolic:
        torch._dynamo.mark_dynamic(ids, 1)
    dynamic = None if is_symbolic else False
    compiled = torch.compile(decoder("gqa", layers=1), backend=backend, fullgraph=True, dynamic=dynamic)
    return lower(compiled, {"input_ids": ids, "use_cache": False})


@pytest.fixture(scope="module")
def prefills(torchair_process):
    return torchair_process(lower_prefills)


@pytest.fixture(scope="module")
def operators(prefills):
    return prefills["split"]


@pytest.fixture(scope="module")
def by_name(operators):
    return {operator.name: operator for operator in operators}


def issued(operators):
    return [operator for operator in operators if operator.type.startswith("Hcom")]


@pytest.mark.parametrize("way", ["split", "symbolic"])
def test_gathers_keys_and_values_and_restores_once_over_the_groups_ranks(prefills, way):
    """And the whole prefill, the control, gathers nothing."""
    found = issued(prefills[way])
    assert [one.type for one in found] == ["HcomAllGather"] * (2 + 1)
    assert all(one.attributes["group"].endswith("rank_list=2,3") for one in found)
    assert {one.attributes["rank_size"] for one in found} == {len(RANKS)}
    assert issued(prefills["whole"]) == []


def test_splits_rows_behind_the_embedding(operators, by_name):
    lookup = of_type(operators, "GatherV2")[0]
    (mine,) = [one for one in of_type(operators, "GatherV2") if one.inputs[0] == lookup.name]
    assert (lookup.shape, mine.shape) == ((1, ROWS, HIDDEN), (1, LOCAL, HIDDEN))


def test_puts_whatever_it_gathers_in_order(operators, by_name):
    """Each gather is read through one list of places, made of the chunk of every row."""
    lists = set()
    for gather in issued(operators):
        (ordered,) = [
            one
            for one in of_type(operators, "GatherV2")
            if way_back(operators, by_name[one.inputs[0]])[-2:-1] == [gather]
        ]
        lists.add(ordered.inputs[1])
    (places,) = lists
    assert by_name[places].shape == (ROWS,)
    assert "FloorDiv" in without_layout(way_back(operators, by_name[places]))


def test_the_same_rows_are_taken_wherever_local_ones_meet_whole_ones(operators, by_name):
    """The embedding, both rotations, the mask: by one list of this rank's rows."""
    selections = of_type(operators, "GatherV2")
    mine = [one.inputs[1] for one in selections if by_name[one.inputs[1]].shape == (LOCAL,)]
    assert len(mine) == 1 + 2 + 1
    assert {by_name[name].type for name in mine} == {"SelectV2"}
    assert len({*mine}) == 1


def test_a_query_sees_all_keys_and_a_head_all_rows(operators):
    (softmax,) = of_type(operators, "SoftmaxV2")
    assert softmax.shape == (1, HEADS, LOCAL, ROWS)
    (end,) = of_type(operators, "NetOutput")
    way = way_back(operators, end)
    assert without_layout(way)[-4:] == ["HcomAllGather", "GatherV2", "BatchMatMul", "NetOutput"]
    assert way[-2].shape == (1, ROWS, COMMON["vocab_size"])


def test_a_whole_prefill_attends_with_all_rows(prefills):
    (softmax,) = of_type(prefills["whole"], "SoftmaxV2")
    assert softmax.shape == (1, HEADS, ROWS, ROWS)


def serve_by_npugraph_ex():
    compiled = torch.compile(
        prefill().npu(), backend=split_over_two("npugraph_ex"), fullgraph=True, dynamic=False
    )
    torch.set_default_device("npu")  # of what the model makes in its own forward
    with torch.no_grad():
        return [
            tuple(compiled(tokens_on_npu(), torch.zeros(1, dtype=torch.int64))[0].shape) for _ in range(2)
        ]


def tokens_on_npu():
    with torch.device("cpu"):
        return tokens(ROWS).npu()


def test_npugraph_ex_captures_a_split_prefill_once_and_replays_it(npu_process):
    """The first of its two captures initialises its memory."""
    served = npu_process(serve_by_npugraph_ex, timeout=600)
    assert served.value == [(1, ROWS, VOCABULARY)] * 2
    assert served.count("capture begin") == 2
    assert [line.split("#")[1] for line in served.events if line.startswith("replay")] == ["1", "2"]
