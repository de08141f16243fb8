"""The second half of a site in two steps, of which a rank has a part of what lies between, for all tokens.

1. The sizes that the nodes between state change: of the features that are cut, of the rows that are stacked.
2. The last GEMM with my part of its input features: partial sums of all tokens.
3. The sum (``sums``): my tokens, complete; the bias is added once, behind it.

A last GEMM that quantises its own input takes the scale of a row over the rank's part of it, as every row
parallel layer does; its result is that of another rounding, not of another product.
"""

from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

from oproj_pass.errors import ConfigError
from oproj_pass.passes.gemm.gemm import RowScale
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.sites.two_steps import TwoSteps
from oproj_pass.passes.strategies.exchange import Exchange
from oproj_pass.passes.strategies.region import PhaseWriter
from oproj_pass.passes.strategies.rows import Rows, row_count
from oproj_pass.passes.strategies.sums import emit_size, emit_total

aten = torch.ops.aten


@dataclass(frozen=True)
class _Whole:
    """What the site computes, from the rows that a rank brings."""

    node: Node
    input: Node


def require_rows_unstated(site: TwoSteps, exchange: Exchange) -> None:
    """Raise ``ConfigError`` if a capacity would change a row count that the graph states."""
    if exchange.capacity is not None and site.rows:
        raise ConfigError(
            f"{site.path}: states its row count (`{site.rows[0].node.name}`), and a capacity changes it. "
            "Leave `capacity` out, or exclude this layer."
        )


def emit_stacked(graph: Graph, product: Node, x: Node, features: int, exchange: Exchange) -> Node:
    """All ranks' rows of a first product in as many dimensions as ``x`` [.., K], stacked along the first."""
    value = value_of(x)
    inner = [
        1 if exchange.capacity is not None else emit_size(graph, x, d) for d in range(1, value.dim() - 1)
    ]
    return graph.call_function(aten.reshape.default, (product, [-1, *inner, features]))


def emit_narrowing(graph: Graph, site: TwoSteps, x: Node, exchange: Exchange, writer: PhaseWriter) -> None:
    """Insert the last GEMM and the sum; ``x`` [.., K] are the rows that this rank brought."""
    for literal in site.literals:
        literal.shrink(exchange.size)
    for literal in site.rows:
        literal.grow(exchange.size)
    down, whole = site.down, _Whole(site.down.node, x)
    rows, scales = _emit_own_rows(graph, site, x, exchange)
    partial = rows.at(down.emit_partial(graph, rows.node, *scales), value_of(down.node).shape[-1])
    writer.end("partial")
    emit_total(graph, partial, down, whole, exchange, writer)


def _emit_own_rows(graph: Graph, site: TwoSteps, x: Node, exchange: Exchange) -> tuple[Rows, list[Node]]:
    """What the last GEMM sums over on this rank, [N*T, I/N], and the scales of those rows."""
    down, count = site.down, row_count(x, exchange)
    part = site.intermediate // exchange.size
    rows = graph.call_function(aten.reshape.default, (down.input, [-1, part]))
    scales = [_emit_own_scale(graph, scale, rows, exchange) for scale in down.row_scales]
    return Rows(rows, count and count * exchange.size, part), scales


def _emit_own_scale(graph: Graph, scale: RowScale, rows: Node, exchange: Exchange) -> Node:
    if scale.features is not None:
        blocks = value_of(scale.node).shape[-1] // exchange.size
        return graph.call_function(aten.reshape.default, (scale.node, [-1, blocks]))
    mine = graph.call_function(aten.reshape.default, (scale.node, [-1]))
    first = graph.call_function(aten.select.int, (rows, -1, 0))  # one scale may be for all rows
    mine = graph.call_function(aten.expand_as.default, (mine, first))
    return graph.call_function(aten.contiguous.default, (mine,))
