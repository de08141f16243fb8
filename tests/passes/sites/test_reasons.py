"""Reasons read as sentences wherever they are composed: "layers.1.out is left alone: it has ..."."""

import logging
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import symbolic_trace

from oproj_pass.backend import entry as backend
from oproj_pass.backend.policy import Decision
from oproj_pass.passes import NearMiss, find_projections
from tests.support.traced import attend, search, traced

H, T = 8, 5
X = torch.randn(T, H)

VERBS = "has|is|follows|matches|belongs|scales|writes"
SENTENCES = {
    "leaves the graph": lambda x, w: attend(x),
    "joins the residual stream": lambda x, w: x + attend(x),
    "goes into a softmax": lambda x, w: torch.softmax(attend(x), 0),
    "goes into an operation the search does not know": lambda x, w: torch.sort(attend(x))[0],
    "meets a weight in a form": lambda x, w: torch.tensordot(attend(x), w, 1),
    "meets a weight that is a constant of the graph": lambda x, w: attend(x) @ torch.eye(H),
    "is computed by `flip`": lambda x, w: F.linear(attend(x), w.flip(0)),
    "scales its product": lambda x, w: torch.addmm(x, attend(x), w, alpha=2),
    "writes in place": lambda x, w: F.linear(attend(x), w.mul_(2)),
    "does not know (out_dtype)": lambda x, w: torch.mm(attend(x), w, out_dtype=torch.float32),
    "follows a token mixer": lambda x, w: F.linear(torch.cumsum(x, 0), w),
    "only reaches `linear`, which feeds": lambda x, w: attend(F.linear(attend(x), w)),
}


@pytest.mark.parametrize("part", SENTENCES)
def test_a_reason_completes_a_sentence_about_its_path(part, caplog):
    _, misses = search(SENTENCES[part], (X,), torch.randn(H, H))
    assert any(part in miss.reason for miss in misses)
    for miss in misses:
        assert re.match(f"({VERBS}) ", miss.reason), miss.reason
        log = logged(NearMiss("layers.1.out", miss.reason), caplog)
        assert f"the first is layers.1.out: it {miss.reason} (all of them at level INFO)" in log
        assert "it its" not in log


def logged(miss, caplog):
    with caplog.at_level(logging.WARNING, logger="oproj_pass"):
        backend._log(Decision({"oproj": 2}, (), (miss,)))
    return caplog.text


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(H, H))
        self.out = nn.Linear(H, H)

    def forward(self, x):
        return F.linear(attend(x), self.weight)


class Whole(Frozen):
    def forward(self, x):
        return self.out(attend(x))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Frozen, "meets a weight that is a constant of the graph, not an input"),
        (Whole, "goes into a module that the graph calls as a whole"),
    ],
)
def test_says_that_a_weight_is_no_input_of_the_graph(model, reason):
    gm = traced(model(), X)
    sites, (miss,) = find_projections(gm, parameters={})
    assert sites == []
    assert f"has a result that {reason}" in miss.reason


@pytest.mark.parametrize("name", ["linear", "norm", "softmax", "add", "view", "cumsum", "bmm", "relu_"])
def test_judges_no_module_by_its_name(name):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module(name, nn.Linear(H, H))

        def forward(self, x, w):
            return F.linear(getattr(self, name)(attend(x)), w)

    gm = symbolic_trace(Named())
    for node in gm.graph.nodes:
        node.meta["val"] = torch.empty(H, H)
    sites, (miss,) = find_projections(gm, parameters={"w": "w"})
    assert sites == []
    assert "goes into a module that the graph calls as a whole" in miss.reason


class Unregistered(Frozen):
    def __init__(self):
        super().__init__()
        del self.weight
        self.weight = torch.randn(H, H)


@pytest.mark.parametrize("unlifted", [False, True])
def test_says_that_a_weight_is_a_constant_of_an_exported_program(unlifted):
    program = torch.export.export(Unregistered(), (X,))
    gm = program.module() if unlifted else program.graph_module
    sites, (miss,) = find_projections(gm, parameters=program.graph_signature.inputs_to_parameters)
    assert sites == []
    assert "constant" in miss.reason
    assert "form that is not in the table" not in miss.reason


def test_an_unforeseen_call_costs_its_site_and_names_the_error(caplog):
    """A node that no rule could foresee: a permutation by a node."""
    gm = symbolic_trace(lambda x, w, n: F.linear(attend(x), w.permute(n, 0)))
    for node in gm.graph.nodes:
        node.meta["val"] = torch.empty(H, H) if node.name != "n" else 1
    with caplog.at_level(logging.WARNING, logger="oproj_pass"):
        sites, (miss,) = find_projections(gm, parameters={"w": "w"})
    assert sites == []
    assert "meets a call that the search cannot read (TypeError" in miss.reason
    assert "permute" in caplog.text
