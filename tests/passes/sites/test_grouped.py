"""Which groups' matrices are one site with the projection behind them, and why the others stay whole."""

import pytest
import torch
from torch import nn

from oproj_pass.passes import Globs, Grouped, Projection, find_projections, find_roles
from tests.support.grouped import GROUPS, RANK, SPELLINGS, DequantisedGroups, GroupedAttention, heads_of


def found(model):
    program = torch.export.export(model, (heads_of(2, 3),))
    names = program.graph_signature.inputs_to_parameters
    return find_roles(program.graph_module, {"oproj": Globs()}, parameters=names)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_finds_both_weights_as_one_site(spelling):
    (site,), misses = found(GroupedAttention(spelling))
    assert isinstance(site, Grouped)
    assert site.path == "wo_b"
    assert [(on.path, on.dim) for on in site.stored] == [("wo_b.weight", 1), ("wo_a.weight", 0)]
    assert (site.first.groups, site.intermediate, site.cuts[0].parts) == (GROUPS, GROUPS * RANK, GROUPS)
    assert not misses


def test_finds_the_scales_that_the_groups_matrices_are_dequantised_by():
    (site,), _ = found(DequantisedGroups())
    assert {on.path for on in site.stored} == {"wo_b.weight", "codes", "scale"}


def test_a_search_for_projections_alone_finds_the_last_weight_alone():
    program = torch.export.export(GroupedAttention(), (heads_of(2, 3),))
    (site,), _ = find_projections(
        program.graph_module, parameters=program.graph_signature.inputs_to_parameters
    )
    assert type(site) is Projection
    assert site.weight_path == "wo_b.weight"


def normed(y):
    return nn.functional.rms_norm(y, y.shape[-1:])


def biased(y):
    return y + torch.arange(float(GROUPS * RANK))


def out_of_order(y):
    return y.unflatten(-1, (GROUPS, RANK)).transpose(-1, -2).flatten(-2)


class ReadTwice(GroupedAttention):
    """Its first weight is a part of something else too."""

    def forward(self, x):
        return super().forward(x) + self.wo_a.weight.sum()


class LeavesTheGroups(GroupedAttention):
    """Returns what lies between its two steps."""

    def forward(self, x):
        kept = []
        self.between = lambda y: kept.append(y) or y
        return super().forward(x), *kept


class MixesRows(GroupedAttention):
    """Tokens are rolled before the groups are joined."""

    def __init__(self):
        super().__init__()
        self.project = lambda x, w: (
            torch.einsum("bsgd,grd->bsgr", x, w.view(GROUPS, RANK, -1)).roll(1, 1).flatten(2)
        )


NEAR_MISSES = {
    "a norm": (GroupedAttention(between=normed), "mixes intermediate features in"),
    "features in another order": (GroupedAttention(between=out_of_order), "intermediate features"),
    "a vector": (GroupedAttention(between=biased), "stored vector"),
    "a weight read twice": (ReadTwice(), "has a weight that is also read by `sum"),
    "groups that leave": (LeavesTheGroups(), "has an intermediate result that leaves the graph"),
    "rows that move": (MixesRows(), "has `roll` between its groups and their rows"),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_leaves_the_groups_whole_and_says_why(name):
    model, reason = NEAR_MISSES[name]
    (site,), (miss,) = found(model)
    assert type(site) is Projection
    assert site.path == "wo_b"
    assert miss.path == "wo_a"
    assert "projects groups for `wo_b`" in miss.reason
    assert reason in miss.reason
    assert miss.nbytes == model.wo_a.weight.nbytes
