"""Brings rows, and the scales they were quantised with, to the ranks that multiply them.

Features are traded over the peers along which K is cut, and then, fewer of them, gathered over those along
which H is cut. Rows end up in the order of the ranks they are from, as a sum over the former needs them. A
scale of a whole row goes to every rank.
"""

import torch
from torch.fx import Graph, Node

from oproj_pass.passes.gemm.axes import Axis
from oproj_pass.passes.gemm.gemm import Gemm, RowScale
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.strategies.exchange import Exchange
from oproj_pass.passes.strategies.rows import (
    Rows,
    emit_arrived,
    emit_gather,
    emit_padding,
    emit_ready,
    emit_scatter,
    emit_swapped,
)

aten, functional = torch.ops.aten, torch.ops._c10d_functional


def emit_operands(
    graph: Graph, gemm: Gemm, exchange: Exchange, cut: tuple[Axis, ...], path: str
) -> tuple[Rows, list[Node]]:
    """All ranks' rows of the GEMM's input, my features of them, and their scales; ``cut``: its cut axes."""
    rows = emit_features(graph, gemm.input, exchange, cut, path)
    return rows, [emit_scale(graph, scale, gemm.input, exchange, cut, path) for scale in gemm.row_scales]


def emit_scale(
    graph: Graph, scale: RowScale, x: Node, exchange: Exchange, cut: tuple[Axis, ...], path: str
) -> Node:
    """The scales of all ranks' rows of ``x``, as far as they are of my features."""
    if scale.features is None:
        return _emit_scale_of_rows(graph, scale, x, exchange, path)
    return emit_features(graph, scale.node, exchange, cut, path).node


def emit_features(graph: Graph, x: Node, exchange: Exchange, cut: tuple[Axis, ...], path: str) -> Rows:
    """All ranks' rows of ``x``, my features of them."""
    rows, along_k, along_h = (
        emit_ready(graph, x, exchange, path),
        exchange.over(Axis.K),
        exchange.over(Axis.H),
    )
    if Axis.K in cut:
        rows = emit_scatter(graph, rows, along_k)
    if Axis.H in cut:
        rows = emit_gather(graph, rows, along_h)
    if len(cut) > 1:
        rows = emit_swapped(graph, rows, along_h.size, along_k.size)
    return emit_arrived(graph, rows, x)


def _emit_scale_of_rows(graph: Graph, scale: RowScale, x: Node, exchange: Exchange, path: str) -> Node:
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
