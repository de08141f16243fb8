"""Attention in graphs inside the graph: what leaves them is followed, what stays inside is a near miss."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.compiler import nested_compile_region
from torch.fx import symbolic_trace
from torch.utils.checkpoint import checkpoint

from oproj_pass.passes.graph.effects import mutated_inputs
from oproj_pass.passes.graph.subgraphs import subgraphs

H = 16
X = torch.randn(2, 5, H)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(H, H, bias=False)

    def forward(self, x):
        return x + self.project(self.attend(x))

    def attend(self, x):
        return F.scaled_dot_product_attention(x, x, x)

    def project(self, y):
        return self.out(y)


class ByHand(Attention):
    def attend(self, x):
        return torch.softmax(x @ x.transpose(1, 2), -1) @ x


class Checkpointed(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=False)


@nested_compile_region
def run(layer, x):
    return layer(x)


class Region(Checkpointed):
    def forward(self, x):
        return run(self.layer, run(self.layer, x))  # one that is called once becomes a part of the graph


class Condition(Checkpointed):
    def forward(self, x):
        return torch.cond(x.sum() > 0, self.layer, lambda x: x.clone(), (x,))


class Loop(Checkpointed):
    def forward(self, x):
        step = torch.zeros((), dtype=torch.int64)
        return torch.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, self.layer(x)), (step, x))[1]


@pytest.mark.parametrize(
    ("around", "operator", "remedy"),
    [
        (Checkpointed, "tag_activation_checkpoint", "without torch.utils.checkpoint"),
        (Region, "invoke_subgraph", "without nested_compile_region"),
        (Condition, "cond", "outside of torch.cond"),
        (Loop, "while_loop", "call it outside of that operator"),
    ],
)
def test_reports_an_attention_inside_of(around, operator, remedy, search):
    found = search(nn.Sequential(Attention(), around(ByHand()), Attention()), X)
    assert found.paths == ["0.out", "2.out"]
    (miss,) = found.misses
    assert miss.path == "1.layer.out"
    assert f"is inside `{operator}`" in miss.reason
    assert remedy in miss.reason
    assert miss.nbytes == 4 * H * H


def test_names_each_layer_that_one_graph_serves(search):
    found = search(nn.Sequential(*(Region(Attention()) for _ in range(2))), X)
    assert found.sites == []
    assert [miss.path for miss in found.misses] == ["0.layer.out", "1.layer.out"]


def test_reports_every_attention_where_all_layers_are_checkpointed(search):
    found = search(nn.Sequential(*(Checkpointed(Attention()) for _ in range(3))), X)
    assert found.sites == []
    assert [miss.path for miss in found.misses] == ["0.layer.out", "1.layer.out", "2.layer.out"]


def test_reports_an_attention_two_graphs_down(search):
    found = search(Checkpointed(nn.Sequential(Attention(), Checkpointed(Attention()))), X)
    assert sorted(found.missed) == ["layer.0.out", "layer.1.layer.out"]


def test_reports_an_attention_inside_that_has_no_projection(search):
    class Bare(Attention):
        def project(self, y):
            return y

    found = search(Checkpointed(Bare()), X)
    (miss,) = found.misses
    assert "is inside `tag_activation_checkpoint`" in miss.reason


def test_says_that_an_option_leaves_a_layer_inside_alone_before_anything_else(search):
    found = search(Checkpointed(Attention()), X, search={"exclude": ["layer.*"]})
    assert found.missed == {"layer.out": "matches an `exclude` glob"}


class CoreOnly(Attention):
    def attend(self, x):
        return checkpoint(super().attend, x, use_reentrant=False)


def test_takes_the_projection_of_an_attention_whose_result_leaves_its_graph(search):
    found = search(nn.Sequential(CoreOnly(), CoreOnly()), X)
    assert (found.paths, found.missed) == (["0.out", "1.out"], {})


class ProjectionOnly(Attention):
    def project(self, y):
        return checkpoint(self.out, y, use_reentrant=False)


def test_says_that_the_projection_lies_in_another_graph(search):
    (miss,) = search(nn.Sequential(ProjectionOnly()), X).misses
    assert "goes into a graph of its own at `tag_activation_checkpoint`" in miss.reason


def test_reports_nothing_for_a_graph_inside_without_attention(search):
    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(H, 48), nn.Linear(48, H)

        def forward(self, x):
            return x + self.down(self.up(x).relu())

    found = search(nn.Sequential(Attention(), Checkpointed(Mlp())), X)
    assert (found.paths, found.missed) == (["0.out"], {})


def test_a_graph_inside_writes_what_its_body_writes():
    body = symbolic_trace(lambda x, y: y.add_(x))
    outer = symbolic_trace(nn.Identity())
    outer.body = body
    (x,) = outer.graph.find_nodes(op="placeholder")
    with outer.graph.inserting_after(x):
        y = outer.graph.placeholder("y")
    with outer.graph.inserting_after(y):
        named = outer.graph.get_attr("body")
    with outer.graph.inserting_after(named):
        call = outer.graph.call_function(torch.ops.higher_order.invoke_subgraph, (named, "body", x, y))
    assert [subgraph.module for subgraph in subgraphs(call)] == [body]
    assert list(mutated_inputs(call)) == [y]
