"""Sharding of an MLP: every rank computes a part of the intermediate features of all ranks' tokens.

1. all_gather: every rank's tokens, once for all first GEMMs that read them.
2. The first GEMMs with my part of their output features, biases and all; a fused gate and up with a part of
   each. What lies between them and the last GEMM stays as it is, on more rows and fewer features.
3. The last GEMM with my part of its input features: partial sums of all tokens.
4. reduce_scatter: my tokens, complete; the last bias is added once, after the sum.

A last GEMM that quantises its own input takes the scale of a row over the rank's part of it, as every row
parallel layer does; its result is that of another rounding, not of another product.
"""

import torch
from torch.fx import Graph, Node

from oproj_pass.errors import ConfigError
from oproj_pass.passes.gemm.axes import Axis, StoredAxis
from oproj_pass.passes.gemm.gemm import Gemm, RowScale
from oproj_pass.passes.graph.metadata import inherit_origin
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.sites.mlp import Mlp
from oproj_pass.passes.sites.same_rows import same_rows
from oproj_pass.passes.strategies.exchange import Exchange
from oproj_pass.passes.strategies.operands import emit_features, emit_scale
from oproj_pass.passes.strategies.region import PhaseWriter, ShardedRegion
from oproj_pass.passes.strategies.rows import Rows, row_count
from oproj_pass.passes.strategies.sums import emit_bias, emit_shape, emit_size, emit_sum, emit_trim
from oproj_pass.passes.strategies.traffic import TokenSizes, whole_rows_nbytes

aten = torch.ops.aten

_ROWS = (Axis.H,)  # what goes to a product that is cut along H: whole rows


class ColumnRow:
    """The strategy (see the module)."""

    name = "column_row"

    def cuts(self, site: Mlp) -> tuple[StoredAxis, ...]:
        """The intermediate axis: what the first GEMMs produce, piece by piece, and what the last one sums."""
        return site.cuts

    def write(self, graph: Graph, site: Mlp, exchange: Exchange) -> ShardedRegion:
        """Rewrite the first GEMMs and the sizes between, and insert the partial sums and their sum."""
        if exchange.capacity is not None and site.rows:
            raise ConfigError(
                f"{site.path}: states its row count (`{site.rows[0].node.name}`), and a capacity changes it. "
                "Leave `capacity` out, or exclude this MLP."
            )
        exchanged, products = _rewrite_ups(graph, site, exchange)
        for literal in site.literals:
            literal.shrink(exchange.size)
        for literal in site.rows:
            literal.grow(exchange.size)
        writer, down = PhaseWriter(site.node), site.down
        rows, scales = _emit_own_rows(graph, site, exchange)
        partial = rows.at(down.emit_partial(graph, rows.node, *scales), value_of(down.node).shape[-1])
        writer.end("partial")
        y = emit_sum(graph, partial, down, exchange, exchange.peers).node
        y = emit_trim(graph, y, site, exchange)
        writer.end("reduce")
        y = emit_bias(graph, y, down, exchange)
        emit_shape(graph, y, site, exchange)
        writer.end("finish")
        writer.phases["exchange"] = tuple(exchanged)
        writer.phases["partial"] = (*products, *site.inner, *writer.phases["partial"])
        return ShardedRegion(site.path, self.name, exchange, self.cuts(site), role=site.role, **writer.phases)

    def sent_nbytes(self, token: TokenSizes, size: int) -> int:
        """K * (N-1) features that the first GEMMs read, H * (N-1) partial sums of the last one."""
        return whole_rows_nbytes(token, size)


def _rewrite_ups(graph: Graph, site: Mlp, exchange: Exchange) -> tuple[list[Node], list[Node]]:
    """Give the first GEMMs every rank's rows and my part of their weights; returns what was inserted.

    First what brings the rows, which all of them read, then what multiplies them.
    """
    exchanged, products = list[Node](), list[Node]()
    rows: Node | None = None
    scales = dict[Node, Node]()
    for up in site.ups:
        writer = PhaseWriter(up.node)
        with graph.inserting_before(up.node):
            if rows is None:
                rows = emit_features(graph, up.input, exchange, _ROWS, site.path).node
            arrived = [
                _emit_scale_once(graph, scale, up, scales, exchange, site.path) for scale in up.row_scales
            ]
            writer.end("exchange")
            product = _emit_product(graph, up, rows, arrived, exchange)
            writer.end("partial")
        for node in (*writer.phases["exchange"], *writer.phases["partial"]):
            inherit_origin(node, up.node)
        exchanged += writer.phases["exchange"]
        products += writer.phases["partial"]
        up.node.replace_all_uses_with(product)
        up.erase()
    return exchanged, products


def _emit_scale_once(
    graph: Graph, scale: RowScale, up: Gemm, arrived: dict[Node, Node], exchange: Exchange, path: str
) -> Node:
    """Every rank's scales of rows; layers that quantise the same input each have the same ones."""
    known = next((mine for mine in arrived if same_rows(mine, scale.node)), scale.node)
    if known not in arrived:
        arrived[known] = emit_scale(graph, scale, up.input, exchange, _ROWS, path)
    return arrived[known]


def _emit_product(graph: Graph, up: Gemm, rows: Node, scales: list[Node], exchange: Exchange) -> Node:
    """My part of the features of every rank's rows, stacked along the first dimension of the input's."""
    part, x = value_of(up.node).shape[-1] // exchange.size, value_of(up.input)
    product = up.emit_partial(graph, rows, *scales, bias=up.bias, out_features=part)
    if x.dim() == 2:
        return product
    inner = [
        1 if exchange.capacity is not None else emit_size(graph, up.input, dim)
        for dim in range(1, x.dim() - 1)
    ]
    return graph.call_function(aten.reshape.default, (product, [-1, *inner, part]))


def _emit_own_rows(graph: Graph, site: Mlp, exchange: Exchange) -> tuple[Rows, list[Node]]:
    """What the last GEMM sums over on this rank, [N*T, I/N], and the scales of those rows."""
    down, count = site.down, row_count(site.input, exchange)
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
