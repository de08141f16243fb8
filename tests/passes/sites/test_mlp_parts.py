"""What a site promises of an MLP: the parts that ranks compute apart from each other add up to the whole."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from oproj_pass.passes import Globs, find_roles, shard_of
from oproj_pass.passes.graph.provenance import placeholders
from tests.passes.sites.test_mlp import FUSED_WAYS, GATED, INTERLEAVED
from tests.support.traced import names_of, traced

HIDDEN, INTER, SIZE = 16, 24, 2
X = torch.randn(2, 3, HIDDEN, dtype=torch.float64)
ROWS = [X, X + 1]  # of each rank
GATE, UP = torch.randn(2, INTER, HIDDEN, dtype=torch.float64)
DOWN, BIAS = torch.randn(HIDDEN, INTER, dtype=torch.float64), torch.randn(2 * INTER, dtype=torch.float64)
FUSED = torch.cat([GATE, UP])


def sum_of_parts(function, *stored, segments=None):
    """The sum over ranks of what each computes of all ranks' rows and its own part of the weights."""
    gm = traced(function, X, *stored)
    (site,), _ = find_roles(gm, {"mlp": Globs()}, parameters=names_of(gm, stored))
    for literal in site.literals:
        literal.shrink(SIZE)
    for literal in site.rows:
        literal.grow(SIZE)
    gm.recompile()
    cuts = {on.node: replace(on, segments=segments or on.segments) for on in site.stored}
    full = dict(zip(placeholders(gm)[1:], stored, strict=True))
    return sum(
        gm(torch.cat(ROWS), *(shard_of(cuts[node], full[node], rank, SIZE) for node in full))
        for rank in range(SIZE)
    )


def check(function, *stored, **options):
    whole = torch.cat([function(rows, *stored) for rows in ROWS])
    torch.testing.assert_close(sum_of_parts(function, *stored, **options), whole)


@pytest.mark.parametrize("name", [name for name in GATED if name != "in float32"])
def test_parts_of_gate_and_up_add_up(name):
    def function(x, gate, up, down):
        return F.linear(GATED[name](F.linear(x, gate), F.linear(x, up)), down)

    check(function, GATE, UP, DOWN)


@pytest.mark.parametrize("name", FUSED_WAYS | INTERLEAVED)
def test_parts_of_a_fused_gate_and_up_add_up(name):
    way = (FUSED_WAYS | INTERLEAVED)[name]
    check(lambda x, gate_up, down: F.linear(way(F.linear(x, gate_up)), down), FUSED, DOWN)


def test_parts_of_a_bias_are_cut_with_its_weight():
    check(lambda x, up, bias, down: F.linear(F.glu(F.linear(x, up, bias)), down), FUSED, BIAS, DOWN)


def test_one_segment_of_a_fused_weight_would_be_wrong():
    with pytest.raises(AssertionError):
        check(lambda x, gate_up, down: F.linear(F.glu(F.linear(x, gate_up)), down), FUSED, DOWN, segments=1)


@pytest.mark.parametrize("dims", [1, [1], [1, 2]])
def test_parts_add_up_where_a_dimension_of_one_comes_and_goes(dims):
    def function(x, up, down):
        return F.linear(F.gelu(F.linear(x, up)).unsqueeze(1).squeeze(dims), down)

    check(function, GATE, DOWN)


@pytest.mark.parametrize("dims", [0, [0], [1, 0]])
def test_rows_stay_on_the_first_dimension(dims):
    gm = traced(lambda x, up, down: F.linear(F.gelu(F.linear(x, up)).squeeze(dims), down), X, GATE, DOWN)
    sites, (miss,) = find_roles(gm, {"mlp": Globs()}, parameters=names_of(gm, (GATE, DOWN)))
    assert sites == []
    assert "takes its intermediate features apart in `squeeze`" in miss.reason
