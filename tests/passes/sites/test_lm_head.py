"""Which GEMMs are heads: their results leave the graph as logits, one for each token of a vocabulary."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from oproj_pass.passes import Globs, find_roles
from oproj_pass.passes.gemm.axes import Axis
from tests.support.traced import names_of, traced

V, HIDDEN, INTER = 19, 8, 12
X = torch.randn(2, 3, HIDDEN)
HEAD = torch.randn(V, HIDDEN)
BIAS = torch.randn(V)


def search_heads(function, *stored, activations=(X,)):
    gm = traced(function, *activations, *stored)
    sites, misses = find_roles(gm, {"lmhead": Globs()}, parameters=names_of(gm, stored))
    return sites, [miss.reason for miss in misses]


HEADS = {
    "plain": lambda x, head: F.linear(x, head),
    "last rows": lambda x, head: F.linear(x[:, -1:], head),
    "last of the logits": lambda x, head: F.linear(x, head)[:, -1, :],
    "capped": lambda x, head: 30 * torch.tanh(F.linear(x, head) / 30),
    "scaled": lambda x, head: F.linear(x, head) * 0.0625,
    "in float32": lambda x, head: F.linear(x, head).float(),
    "without padding": lambda x, head: F.linear(x, head)[..., : V - 2],
    "probabilities": lambda x, head: F.linear(x, head).log_softmax(-1),
    "sampled": lambda x, head: F.linear(x, head).argmax(-1),
    "transposed": lambda x, head: x @ head.T,
    "in rows": lambda x, head: F.linear(x.view(-1, HIDDEN), head).view(2, 3, V),
}


@pytest.mark.parametrize("name", HEADS)
def test_takes_a_head(name):
    (site,), misses = search_heads(HEADS[name], HEAD)
    assert misses == []
    assert (site.role, site.axis, site.out_features) == ("lmhead", Axis.H, V)
    assert [(on.node.name, on.dim) for on in site.stored] == [("head", 0)]
    assert site.nbytes == 4 * V * HIDDEN


def test_takes_a_head_with_a_bias():
    (site,), _ = search_heads(lambda x, head, bias: F.linear(x, head, bias), HEAD, BIAS)
    assert site.gemm.bias.name == "bias"


def test_takes_several_heads_of_one_hidden_state():
    def function(x, first, second):
        return torch.stack([F.linear(x, first), F.linear(x, second)], 1)

    sites, misses = search_heads(function, HEAD, HEAD.clone())
    assert misses == []
    assert [site.weight.name for site in sites] == ["first", "second"]


def test_takes_a_temperature_that_comes_with_the_batch():
    function = lambda x, temperature, head: F.linear(x, head) / temperature  # noqa: E731
    sites, _ = search_heads(function, HEAD, activations=(X, torch.ones(2, 1, 1)))
    assert len(sites) == 1


def test_takes_the_vocabulary_of_a_table_that_is_smaller_than_the_hidden_state():
    def function(ids, table, head):
        return F.linear(F.embedding(ids, table), head)

    small = torch.randn(5, HIDDEN)
    sites, misses = search_heads(function, small, small.clone(), activations=(torch.arange(6).view(2, 3),))
    assert misses == []
    assert [site.weight.name for site in sites] == ["head"]


def joins(x, head):
    return F.linear(x, head).sum() + x


def in_heads(x, head):
    return F.linear(x, head).view(2, 3, -1, 1).transpose(1, 2)


def attended(x, head):
    y = F.linear(x, head)
    return F.scaled_dot_product_attention(y, y, y)


def hidden(x, head):
    return F.linear(x, head) @ torch.ones(V, 2)


@pytest.mark.parametrize("function", [joins, in_heads, attended, hidden])
def test_takes_no_hidden_state_for_logits(function):
    assert search_heads(function, HEAD) == ([], [])


@pytest.mark.parametrize("features", [2, HIDDEN])
def test_names_a_classifier_and_a_pooler(features):
    sites, (reason,) = search_heads(
        lambda x, w: torch.tanh(F.linear(x[:, 0], w)), torch.randn(features, HIDDEN)
    )
    assert sites == []
    assert reason == (
        f"makes {features} features of {HIDDEN}, and no table of this graph has {features} entries: "
        "a classifier, a pooler or a router"
    )


def test_takes_no_mlp_that_ends_the_graph_for_a_head():
    up, down = torch.randn(INTER, HIDDEN), torch.randn(HIDDEN, INTER)
    gm = traced(lambda x, up, down: F.linear(F.relu(F.linear(x, up)), down), X, up, down)
    sites, misses = find_roles(
        gm, {"mlp": Globs(), "lmhead": Globs()}, parameters={"up": "up", "down": "down"}
    )
    assert [site.role for site in sites] == ["mlp"]
    assert misses == []


def test_gives_a_transformed_head_to_its_own_role():
    """BERT's: dense, GELU, norm, decoder. The norm alone would make it a near miss of an MLP."""
    stored = (torch.randn(HIDDEN, HIDDEN), HEAD)
    gm = traced(
        lambda x, dense, head: F.linear(F.layer_norm(F.gelu(F.linear(x, dense)), (HIDDEN,)), head), X, *stored
    )
    sites, misses = find_roles(gm, {"mlp": Globs(), "lmhead": Globs()}, parameters=names_of(gm, stored))
    assert [site.role for site in sites] == ["lmhead"]
    assert misses == []


def test_names_what_leaves_at_a_graph_break(search_roles):
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(HIDDEN, 2 * HIDDEN), nn.Linear(2 * HIDDEN, V)

        def forward(self, x):
            y = self.first(x)
            torch._dynamo.graph_break()
            return self.head(y)

    found = search_roles(Broken(), X)
    assert found.paths == ["head"]
    assert found.missed == {
        "first": "leaves the graph at a graph break, where logits cannot be told from a hidden state"
    }
