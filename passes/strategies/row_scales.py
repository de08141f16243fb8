"""Emits what brings the scales of quantised rows to the rank that multiplies those rows.

A scale of a whole row goes to every rank (all_gather); scales of a row's blocks go where their features go.
"""

import torch
from torch.fx import Graph, Node

from oproj_pass.passes.gemm.gemm import RowScale
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.strategies.exchange import Exchange
from oproj_pass.passes.strategies.rows import emit_padding

aten, functional = torch.ops.aten, torch.ops._c10d_functional


def emit_scale_of_rows(graph: Graph, scale: RowScale, x: Node, exchange: Exchange, path: str) -> Node:
    """The scales of every rank's rows of ``x`` [.., K], one a row: [N*T]."""
    mine = graph.call_function(aten.reshape.default, (scale.node, [-1]))
    if value_of(scale.node).numel() == 1:  # one scale for all of my rows, another one on other ranks
        first = graph.call_function(aten.select.int, (x, -1, 0))
        rows = graph.call_function(aten.reshape.default, (first, [-1]))
        mine = graph.call_function(aten.expand_as.default, (mine, rows))
        mine = graph.call_function(aten.contiguous.default, (mine,))
    if exchange.capacity is not None:
        column = graph.call_function(aten.reshape.default, (mine, [-1, 1]))
        mine = graph.call_function(aten.reshape.default, (emit_padding(graph, column, exchange, path), [-1]))
    gathered = graph.call_function(
        functional.all_gather_into_tensor.default, (mine, exchange.size, exchange.group_name)
    )
    return graph.call_function(functional.wait_tensor.default, (gathered,))
