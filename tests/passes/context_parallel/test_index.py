"""The indices of the pass are those of the planner."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from oproj_pass.capture import ContextSplit
from oproj_pass.passes.context_parallel.index import local_rows

OPERATORS = torch.ops.oproj_pass
LIKE = torch.zeros(1)


@given(st.integers(1, 8), st.integers(1, 200))
def test_a_rank_takes_the_planners_rows_and_restores_their_order(pcp_size, num_rows):
    split = ContextSplit(pcp_size, (num_rows,))
    for rank in range(pcp_size):
        rows = OPERATORS.context_rows(LIKE, num_rows, pcp_size, rank)
        assert rows.tolist() == [source or 0 for source in split.sources(rank)]
        assert len(rows) == local_rows(num_rows, pcp_size)
    order = OPERATORS.context_order(LIKE, num_rows, pcp_size)
    assert order.tolist() == [*split.restore_indices()]


def traced(pcp_size, num_rows):
    """Both indices as a graph of a symbolic number of rows, traced with one number."""

    def indices(ids):
        rows = [OPERATORS.context_rows(ids, ids.shape[0], pcp_size, rank) for rank in range(pcp_size)]
        return torch.cat(rows), OPERATORS.context_order(ids, ids.shape[0], pcp_size)

    return make_fx(indices, tracing_mode="symbolic")(torch.zeros(num_rows))


@pytest.mark.parametrize("pcp_size", [2, 4])
def test_one_symbolic_graph_restores_every_length(pcp_size):
    """Of fewer than P rows a rank may hold two where the planner has one; their order is restored alike."""
    graph = traced(pcp_size, 64)
    for num_rows in range(2, 40):
        rows, order = graph(torch.zeros(num_rows))
        assert rows[order].tolist() == list(range(num_rows))
        if num_rows > pcp_size:
            assert len(rows) == pcp_size * ContextSplit(pcp_size, (num_rows,)).local_total


def test_a_graph_computes_its_indices_of_operators_that_compilers_lower():
    targets = {node.target for node in traced(2, 64).graph.nodes if node.op == "call_function"}
    assert not any(getattr(target, "namespace", "") == "oproj_pass" for target in targets)
    assert torch.sym_max not in targets
    assert torch.sym_min not in targets
