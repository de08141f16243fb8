"""Every stored weight of a small model has the role that it plays there."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from oproj_pass.passes import ROLES, Globs, find_roles
from tests.support.traced import traced

HIDDEN, INTERMEDIATE, V = 32, 48, 97
IDS = torch.arange(6).view(2, 3)


class GatedMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(HIDDEN, INTERMEDIATE, bias=False), nn.Linear(HIDDEN, INTERMEDIATE)
        self.down = nn.Linear(INTERMEDIATE, HIDDEN)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Model(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.embed, self.head = nn.Embedding(V, HIDDEN), nn.Linear(HIDDEN, V, bias=False)
        self.norm, self.out, self.mlp = nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, HIDDEN), GatedMlp()
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        x = x + self.out(F.scaled_dot_product_attention(x, x, x))
        x = x + self.mlp(self.norm(x))
        return self.head(self.norm(x))


def paths(sites):
    return {site.role: site.path for site in sites}


def test_finds_each_role_on_a_dynamo_graph(search_roles):
    found = search_roles(Model(), IDS)
    assert paths(found.sites) == {"oproj": "out", "mlp": "mlp", "lmhead": "head", "embedding": "embed"}
    assert found.misses == []


def test_finds_each_role_on_an_aten_graph(search_roles_aten):
    for found in search_roles_aten(Model(), IDS):
        assert [site.role for site in found.sites] == list(ROLES)
        assert found.misses == []


def test_says_what_of_each_role_is_cut(search_roles):
    sites = {site.role: site for site in search_roles(Model(), IDS).sites}
    cut = {role: {on.path: on.dim for on in site.stored} for role, site in sites.items()}
    assert cut["oproj"] == {"out.weight": 1}
    assert cut["mlp"] == {"mlp.gate.weight": 0, "mlp.up.weight": 0, "mlp.up.bias": 0, "mlp.down.weight": 1}
    assert cut["lmhead"] == {"head.weight": 0}
    assert cut["embedding"] == {"embed.weight": 0}
    assert sites["mlp"].nbytes == 4 * (3 * HIDDEN * INTERMEDIATE + INTERMEDIATE)


def test_takes_a_tied_weight_at_both_places(search_roles):
    sites = {site.role: site for site in search_roles(Model(tied=True), IDS).sites}
    (head,), (table,) = sites["lmhead"].stored, sites["embedding"].stored
    assert (head.node, head.dim) == (table.node, table.dim)


@pytest.mark.parametrize("role", ["lmhead", "embedding"])
def test_leaves_a_tied_weight_alone_when_its_other_role_is_not_asked_for(role, search_roles):
    found = search_roles(Model(tied=True), IDS, roles=[role])
    assert found.sites == []
    (miss,) = found.misses
    assert (miss.role, miss.nbytes) == (role, 4 * V * HIDDEN)
    assert "is also read by" in miss.reason


def test_asks_each_role_for_its_own_globs():
    model = Model()

    def function(ids, table, gate, up, down):
        x = F.embedding(ids, table)
        return x + F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    stored = [model.embed.weight, *(getattr(model.mlp, name).weight for name in ("gate", "up", "down"))]
    gm = traced(function, IDS, *stored)
    names = {name: name for name in ("table", "gate", "up", "down")}
    asked = {"mlp": Globs(include=["elsewhere"]), "embedding": Globs()}
    sites, (miss,) = find_roles(gm, asked, parameters=names)
    assert [site.role for site in sites] == ["embedding"]
    assert (miss.role, miss.reason) == ("mlp", "matches no `include` glob")
