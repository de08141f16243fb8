"""A gather of what every rank holds is refused; one that is undone at once is taken out; any other stays."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph, GraphModule

from oproj_pass.errors import RedundantGatherError
from oproj_pass.passes import RedundantCollectives, run_passes
from oproj_pass.passes.graph.collectives import is_collective
from tests.support.fake import fake_world
from tests.support.traced import traced

c10d = torch.ops._c10d_functional
SIZE, RANK, ROWS, HIDDEN = 4, 1, 3, 8
OWN = slice(RANK * ROWS, (RANK + 1) * ROWS)


@pytest.fixture(scope="module", autouse=True)
def world():
    with fake_world(SIZE, RANK):
        yield


def name_of():
    return torch.distributed.group.WORLD.group_name


def gather(x, group_name=None):
    return c10d.wait_tensor.default(c10d.all_gather_into_tensor.default(x, SIZE, group_name or name_of()))


def sum_of(x):
    return c10d.wait_tensor.default(c10d.all_reduce.default(x, "sum", name_of()))


def part_of_sum(x):
    return c10d.wait_tensor.default(c10d.reduce_scatter_tensor.default(x, "sum", SIZE, name_of()))


def cleaned(function, compared=True):
    gm = traced(function, torch.empty(ROWS, HIDDEN))
    (record,) = run_passes(gm, (), [RedundantCollectives([name_of()] if compared else [])])
    return gm, record


def is_left_alone(function, **options):
    before = str(traced(function, torch.empty(ROWS, HIDDEN)).graph)
    gm, record = cleaned(function, **options)
    return record.is_clean and not record.matches and str(gm.graph) == before


GLOBAL = {
    "gathered": lambda x: gather(gather(x)),
    "summed": lambda x: gather(sum_of(x)),
    "normed": lambda x: gather(F.rms_norm(gather(x), (HIDDEN,)) * 2.0),
    "laid out otherwise": lambda x: gather(gather(x)[:, None].flatten(1).double()),
    "of two global values": lambda x: gather(gather(x) + sum_of(gather(x))),
}
LOCAL = {
    "an input": lambda x: gather(x),
    "a part by number": lambda x: gather(gather(x)[2:] + 1.0),
    "beside an input": lambda x: gather(gather(x) + x[:1]),
    "a product with a matrix": lambda x: gather(gather(x) @ x.t()),
    "integers from a rank's start on": lambda x: gather(gather(x).long() - 7),
    "random": lambda x: gather(F.dropout(gather(x))),
    "scattered again": lambda x: gather(part_of_sum(gather(x))),
    "written in place": lambda x: gather(gather(x).mul_(x[:1])),
    "global to another group": lambda x: gather(gather(x, "other")),
}


@pytest.mark.parametrize("function", GLOBAL.values(), ids=GLOBAL)
def test_refuses_to_gather_what_every_rank_holds(function):
    with pytest.raises(RedundantGatherError, match=r"all_gather.*4 copies of the same"):
        cleaned(function)


@pytest.mark.parametrize("function", LOCAL.values(), ids=LOCAL)
def test_keeps_a_gather_of_what_may_differ_by_rank(function):
    assert is_left_alone(function)


class Norm(nn.Module):
    """A norm in front of a head that gathers once more."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x):
        return gather(F.rms_norm(gather(x), (HIDDEN,), 1.0 + self.weight))


def test_a_stored_vector_beside_a_global_value_changes_nothing_and_alone_is_local():
    program = torch.export.export(Norm(), (torch.empty(ROWS, HIDDEN),))
    names = program.graph_signature.inputs_to_parameters
    with pytest.raises(RedundantGatherError):
        run_passes(program.graph_module, (), [RedundantCollectives(parameters=names)])
    gm = traced(lambda weight: gather(weight * 2.0), torch.empty(HIDDEN))
    (record,) = run_passes(gm, (), [RedundantCollectives(parameters={"weight": "norm.weight"})])
    assert record.is_clean  # FSDP: a rank's part of a norm's weight


def test_tells_the_rows_and_bytes_of_the_nested_gather_of_a_restored_hidden_state():
    """xLLM, PR 2003: 32 ranks, 30,000 tokens of 6,144 bf16 features, gathered once more for the head."""
    graph, hidden = Graph(), torch.empty(30_000, 6144, dtype=torch.bfloat16, device="meta")
    restored = graph.call_function(c10d.all_reduce.default, (graph.placeholder("x"), "sum", "cp"))
    restored.meta["val"] = hidden
    graph.output(graph.call_function(c10d.all_gather_into_tensor.default, (restored, 32, "cp")))
    with pytest.raises(
        RedundantGatherError, match=r"\[30000, 6144\].*into 960000 rows, 10.99 GiB: 32 copies"
    ):
        RedundantCollectives()(GraphModule({}, graph), ())


OWN_PARTS = {
    "indexed": lambda x: gather(x)[OWN] * 2,
    "narrowed": lambda x: gather(x).narrow(0, OWN.start, ROWS) * 2,
    "sliced": lambda x: torch.ops.aten.slice.Tensor(gather(x), 0, OWN.start, OWN.stop) * 2,
    "split": lambda x: gather(x).split(ROWS)[RANK] * 2,
    "chunked": lambda x: gather(x).chunk(SIZE)[RANK] * 2,
    "the result": lambda x: gather(x)[OWN],
}
OTHERS = {
    "another rank's part": lambda x: gather(x)[:ROWS] * 2,
    "a longer part": lambda x: gather(x)[OWN.start : OWN.stop + 1],
    "another dimension": lambda x: gather(x).narrow(1, 1, 2),
    "a second reader": lambda x: (lambda whole: (whole[OWN], whole.sum()))(gather(x)),
    "two parts": lambda x: (lambda parts: (parts[RANK], parts[0]))(gather(x).chunk(SIZE)),
    "chunked along features": lambda x: gather(x).chunk(SIZE, 1)[RANK],
    "every second row": lambda x: gather(x)[OWN.start : 9 : 2],
    "another group": lambda x: gather(x, "other")[OWN],
}


@pytest.mark.parametrize("function", OWN_PARTS.values(), ids=OWN_PARTS)
def test_takes_out_a_gather_whose_only_reader_takes_its_own_part(function):
    gm, record = cleaned(function)
    assert len(record.matches) == 1
    assert not any(map(is_collective, gm.graph.nodes))
    x = torch.randn(ROWS, HIDDEN)
    assert torch.equal(gm(x), x if "mul" not in str(gm.graph) else x * 2)


@pytest.mark.parametrize("function", OTHERS.values(), ids=OTHERS)
def test_keeps_a_gather_of_which_anything_else_is_read(function):
    assert is_left_alone(function)


def test_keeps_a_gather_of_a_symbolic_number_of_rows_unless_the_part_is_its_own():
    class Part(nn.Module):
        def __init__(self, place):
            super().__init__()
            self.place = place

        def forward(self, x):
            return gather(x).narrow(0, self.place * x.shape[0], x.shape[0]) * 2

    for place in range(SIZE):
        rows = torch.export.Dim("rows", min=2)
        program = torch.export.export(Part(place), (torch.empty(ROWS, HIDDEN),), dynamic_shapes=({0: rows},))
        (record,) = run_passes(program.graph_module, (), [RedundantCollectives([name_of()])])
        assert len(record.matches) == (place == RANK)


def test_keeps_a_gather_where_ranks_do_not_compare_their_graphs():
    """There rank 0 would take it out where rank 0's part is meant for everyone, and its peers would wait."""
    _, record = cleaned(OWN_PARTS["indexed"], compared=False)
    (miss,) = record.near_misses
    assert record.is_clean
    assert "do not compare their graphs" in miss.reason


@pytest.mark.parametrize(
    "write", [lambda x, part: part.add_(1), lambda x, part: x.add_(1)], ids=["part", "x"]
)
def test_keeps_a_gather_where_the_graph_writes_to_what_would_become_one(write):
    def function(x):
        part = gather(x)[OWN]
        write(x, part)
        return part

    gm, record = cleaned(function)
    assert "writes to one of the two" in record.near_misses[0].reason
    assert any(map(is_collective, gm.graph.nodes))
