"""Stored weights are told from other inputs by Dynamo's record of where each came from."""

import torch
from torch import nn

from oproj_pass.passes.graph.provenance import placeholders
from oproj_pass.passes.graph.stored import is_stored, parameter_paths


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(10, 4), nn.LayerNorm(4)
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("cache", torch.zeros(4))

    def forward(self, ids, bias):
        y = self.norm(self.table(ids.long())) * self.scale + bias
        self.cache.add_(y.sum(0))
        return y


STORED = {"table.weight", "norm.weight", "norm.bias", "scale"}


def recorded(*, forget):
    """The paths on record, and how many inputs a module holds; ``forget``: Dynamo's real tensors are gone."""
    found = []

    def backend(gm, _):
        inputs = placeholders(gm)
        kept = {node: node.meta.pop("grapharg") for node in inputs} if forget else {}
        found.append((parameter_paths(gm), sum(map(is_stored, inputs))))
        for node, argument in kept.items():  # Dynamo's guards want them
            node.meta["grapharg"] = argument
        return gm

    with torch.no_grad():
        torch.compile(Model(), backend=backend)(torch.arange(3, dtype=torch.int32), torch.ones(4))
    ((paths, stored),) = found
    return set(paths.values()), stored


def test_takes_parameters_and_buffers_that_the_graph_does_not_write():
    paths, stored = recorded(forget=False)
    assert paths == STORED
    assert stored == len(STORED | {"cache"})


def test_reads_the_sources_where_ahead_of_time_compilation_let_go_of_the_tensors():
    assert recorded(forget=True) == recorded(forget=False)


def test_has_no_record_of_a_graph_that_no_dynamo_made():
    graph = torch.fx.symbolic_trace(lambda x, weight: x @ weight)
    assert parameter_paths(graph) is None
