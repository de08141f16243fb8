"""The second half of a sharded product: partial sums become one, and a result gets its type and its shape.

Partial sums are added by a reduce_scatter, in the order and the type of its library; or exchanged like rows,
and added on the rank that needs the sum: as many bytes, one round, in rank order, half precision in float32.
"""

from typing import Protocol

import torch
from torch.fx import Graph, Node

from oproj_pass.passes.gemm.gemm import Gemm
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.strategies.exchange import Exchange, Peers
from oproj_pass.passes.strategies.region import PhaseWriter
from oproj_pass.passes.strategies.rows import Rows, emit_parts

aten, functional = torch.ops.aten, torch.ops._c10d_functional


def emit_sum(graph: Graph, partial: Rows, gemm: Gemm, exchange: Exchange, peers: Peers) -> Rows:
    """Sum the peers' partial products and keep my rows: [n*T, H] -> [T, H], in the type they travel in."""
    if (wide := _reduce_dtype(gemm, exchange)) is not None:
        partial = partial.at(graph.call_function(aten.to.dtype, (partial.node, wide)))
    if exchange.reduce == "scatter":
        return emit_reduce_scatter(graph, partial, peers)
    parts = emit_parts(graph, partial, peers)
    node = _emit_sum_of_parts(graph, parts, peers.size, wide or value_of(gemm.node).dtype)
    return Rows(node, partial.count and partial.count // peers.size, partial.features)


def emit_reduce_scatter(graph: Graph, partial: Rows, peers: Peers) -> Rows:
    """Sum the peers' rows in one collective, and keep my own: [n*T, H] -> [T, H]."""
    node = graph.call_function(
        functional.reduce_scatter_tensor.default, (partial.node, "sum", peers.size, peers.group_name)
    )
    node = graph.call_function(functional.wait_tensor.default, (node,))
    return Rows(node, partial.count and partial.count // peers.size, partial.features)


def _emit_sum_of_parts(graph: Graph, parts: Node, size: int, dtype: torch.dtype) -> Node:
    """[n, T, H] -> [T, H]: one addition after the other, since an order that a kernel chooses follows T."""
    is_half = dtype.is_floating_point and dtype.itemsize < 4
    if is_half:
        parts = graph.call_function(aten.to.dtype, (parts, torch.float32))
    total = graph.call_function(aten.select.int, (parts, 0, 0))
    for peer in range(1, size):
        part = graph.call_function(aten.select.int, (parts, 0, peer))
        total = graph.call_function(aten.add.Tensor, (total, part))
    return graph.call_function(aten.to.dtype, (total, dtype)) if is_half else total


def emit_product_type(graph: Graph, y: Node, gemm: Gemm, exchange: Exchange) -> Node:
    """A sum in the type of the product, whatever it travelled in."""
    if _reduce_dtype(gemm, exchange) is None:
        return y
    return graph.call_function(aten.to.dtype, (y, value_of(gemm.node).dtype))


class Product(Protocol):
    """A GEMM or a site: ``node`` [.., H] is made of ``input`` [.., K]."""

    @property
    def node(self) -> Node:
        """The result."""

    @property
    def input(self) -> Node:
        """What has its rows."""


def emit_trim(graph: Graph, y: Node, gemm: Product, exchange: Exchange) -> Node:
    """The rows of ``y`` that stand for those of the step, without the ones that filled a capacity up."""
    if exchange.capacity is None:
        return y
    return graph.call_function(torch.ops.oproj_pass.trim_rows.default, (y, gemm.input))


def emit_shape(graph: Graph, y: Node, gemm: Product, exchange: Exchange) -> Node:
    """``y`` [T, H] in the shape [.., H] of the product; trimmed rows have it."""
    x = value_of(gemm.input)
    if x.dim() == 2 or exchange.capacity is not None:
        return y
    leading = [emit_size(graph, gemm.input, dim) for dim in range(x.dim() - 1)]
    return graph.call_function(aten.reshape.default, (y, [*leading, value_of(gemm.node).shape[-1]]))


def emit_total(
    graph: Graph, partial: Rows, gemm: Gemm, whole: Product, exchange: Exchange, writer: PhaseWriter
) -> None:
    """Insert what follows the partial products of ``gemm``, which all peers sum: sum, bias and shape.

    ``whole``: the product whose rows this rank brought, which ``gemm`` is the last or the only GEMM of.
    """
    y = emit_sum(graph, partial, gemm, exchange, exchange.peers).node
    y = emit_trim(graph, y, whole, exchange)
    writer.end("reduce")
    y = emit_product_type(graph, gemm.add_bias(graph, y), gemm, exchange)
    emit_shape(graph, y, whole, exchange)
    writer.end("finish")


def _reduce_dtype(gemm: Gemm, exchange: Exchange) -> torch.dtype | None:
    """The type partial sums travel in, if not their own; an integer sum is exact in its own."""
    return exchange.reduce_dtype if value_of(gemm.node).is_floating_point() else None


def emit_size(graph: Graph, x: Node, dim: int) -> Node | int:
    """A size of ``x``: a number, or the node of a symbolic one."""
    size = value_of(x).shape[dim]
    return size if isinstance(size, int) else graph.call_function(aten.sym_size.int, (x, dim))
