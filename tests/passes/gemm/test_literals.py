"""Sizes that a call states follow the tensor, however they are written."""

import pytest
import torch
from torch.fx import symbolic_trace

from oproj_pass.passes.gemm.literals import Literal

X = torch.ones(4, 6)


def after(function, dim, *more, shrink=1, grow=1):
    """The shape of what ``function`` makes of four rows of six, once its last call's size has changed."""
    gm = symbolic_trace(function)
    literal = Literal(next(node for node in reversed(gm.graph.nodes) if node.op != "output"), dim)
    if shrink > 1:
        literal.shrink(shrink)
    if grow > 1:
        literal.grow(grow)
    gm.recompile()
    return gm(X, *more)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[..., 6:12],
        lambda x: torch.narrow(x, -1, 6, 6),
        lambda x: torch.ops.aten.slice.Tensor(x, 1, 6, 12),
        lambda x: x.new_empty(4, 6),
    ],
)
def test_shrinks_where_a_call_cuts_and_how_large_a_buffer_is(function):
    assert after(function, 1, shrink=2).shape == (4, 3)


@pytest.mark.parametrize("sizes", [6, [6, 6]])
def test_shrinks_the_sizes_of_parts(sizes):
    parts = after(lambda x: torch.split(x, sizes, -1), 1, shrink=2)
    assert [part.shape[-1] for part in parts] == [3, 3]


def test_grows_a_number_of_rows_and_leaves_whatever_is_left():
    assert after(lambda x: x.view(2, 6), 0, grow=2).shape == (4, 6)
    assert after(lambda x: x.view(-1, 12), 0, grow=2).shape == (2, 12)


def test_grows_a_computed_number_of_rows_in_a_node_of_its_own():
    assert after(lambda x, rows: x.view(rows, 6), 0, 2, grow=2).shape == (4, 6)
