"""Row counts of a graph's projections follow from the inputs of a call, unless the graph decides on them."""

import pytest
import torch
from torch import nn

from oproj_pass.backend.row_counts import RowCounts
from oproj_pass.passes import find_projections
from oproj_pass.passes.graph.provenance import placeholders
from tests.support.models import Attention, decoder, rows


class PickedRows(nn.Module):
    """Attends to the rows that are not zero: how many there are is known when the graph runs."""

    def __init__(self):
        super().__init__()
        self.attn = Attention().requires_grad_(False)

    def forward(self, x):
        return self.attn(x[x[:, 0].nonzero().squeeze(-1)])


class TwoInputs(nn.Module):
    """Two layers whose rows come from different inputs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (Attention().requires_grad_(False) for _ in range(2))

    def forward(self, x, y):
        return self.first(x), self.second(torch.cat([y, y]))


@torch.inference_mode()
def counts_of(model, *shapes, dynamic):
    """For each set of input shapes, the counts by path that one graph gives for it."""
    computed, found = [], []

    def compile_graph(gm, _):
        found.append(RowCounts.of(find_projections(gm)[0], placeholders(gm)))

        def call(*arguments):
            computed.append(found[-1] and found[-1](arguments))
            return gm(*arguments)

        return call

    step = torch.compile(model, backend=compile_graph, dynamic=dynamic, fullgraph=True)
    for inputs in shapes:
        step(*(rows(*shape) for shape in inputs))
    return computed, len(found)


def test_a_symbolic_count_is_read_from_each_call():
    computed, graphs = counts_of(decoder(layers=2), [(3, 32)], [(7, 32)], dynamic=True)
    paths = ["layers.0.attn.o_proj", "layers.1.attn.o_proj"]
    assert computed == [dict.fromkeys(paths, 3), dict.fromkeys(paths, 7)]
    assert graphs == 1


def test_batch_and_sequence_are_multiplied():
    computed, graphs = counts_of(decoder(layers=1), [(2, 3, 32)], [(5, 4, 32)], dynamic=True)
    assert [list(counts.values()) for counts in computed] == [[6], [20]]
    assert graphs == 1


def test_a_static_count_is_the_graphs_own():
    computed, graphs = counts_of(decoder(layers=1), [(3, 32)], [(7, 32)], dynamic=False)
    assert [list(counts.values()) for counts in computed] == [[3], [7]]
    assert graphs == 2


def test_layers_may_have_counts_of_their_own():
    computed, _ = counts_of(TwoInputs(), [(3, 32), (4, 32)], [(5, 32), (6, 32)], dynamic=True)
    assert computed == [
        {"first.o_proj": 3, "second.o_proj": 8},
        {"first.o_proj": 5, "second.o_proj": 12},
    ]


@pytest.mark.parametrize("dynamic", [True, False])
def test_knows_nothing_where_the_graph_decides(dynamic):
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        computed, _ = counts_of(PickedRows(), [(3, 32)], dynamic=dynamic)
    assert computed == [None]
