"""Emits the two collectives around a sharded projection, as plain graph nodes.

Decides how rows are packed for the wire; the GEMM between the two halves is the caller's. Works on a Dynamo
graph and on an ATen graph, with static and with symbolic token counts.
"""

import operator
from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

from oproj_pass.passes.gemm.gemm import Gemm
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.strategies import capacity, check_rows  # noqa: F401  (they register operators)

aten, functional = torch.ops.aten, torch.ops._c10d_functional

# Types that gloo and several device backends cannot send: they travel as bytes, and are never summed.
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


@dataclass(frozen=True)
class Exchange:
    """Who exchanges, and how.

    ``size``: ranks of the group, N. ``group_name``: the c10d name of its process group. ``reduce_dtype``: the
    type partial sums travel in, the product's own if None. ``control_group_name``: if set, ranks compare
    their row counts over that group before each exchange and raise instead of hanging. ``capacity``: if set,
    every exchange carries that many rows, zeros after the step's own.
    """

    size: int
    group_name: str
    reduce_dtype: torch.dtype | None = None
    control_group_name: str | None = None
    capacity: int | None = None


def emit_scatter(graph: Graph, x: Node, in_features: int, exchange: Exchange, path: str) -> Node:
    """Trade my tokens' K features for every rank's tokens and my features: [.., K] -> [N*T, K/N].

    The wire format is flat, since one Ascend kernel reads element counts as row counts. Any element type
    travels as it is; float8 travels as bytes.
    """
    size, part = exchange.size, in_features // exchange.size
    rows = x
    if exchange.control_group_name is not None:
        check = torch.ops.oproj_pass.check_rows.default
        rows = graph.call_function(check, (x, exchange.control_group_name, path))
    rows = emit_padding(graph, rows, exchange, path)
    is_float8 = value_of(x).dtype in _FLOAT8
    if is_float8:
        rows = graph.call_function(aten.view.dtype, (rows, torch.uint8))
    packed = graph.call_function(aten.reshape.default, (rows, [-1, size, part]))
    packed = graph.call_function(aten.permute.default, (packed, [1, 0, 2]))
    flat = graph.call_function(aten.reshape.default, (packed, [-1]))
    splits = [_elements_per_rank(graph, x, flat, exchange)] * size
    received = graph.call_function(
        functional.all_to_all_single.default, (flat, splits, splits, exchange.group_name)
    )
    received = graph.call_function(functional.wait_tensor.default, (received,))
    if is_float8:
        received = graph.call_function(aten.view.dtype, (received, value_of(x).dtype))
    return graph.call_function(aten.reshape.default, (received, [-1, part]))


def emit_reduce(graph: Graph, partial: Node, gemm: Gemm, exchange: Exchange) -> Node:
    """Sum the partial products and keep my tokens: [N*T, H] -> [T, H]."""
    if (wide := _reduce_dtype(gemm, exchange)) is not None:
        partial = graph.call_function(aten.to.dtype, (partial, wide))
    y = graph.call_function(
        functional.reduce_scatter_tensor.default, (partial, "sum", exchange.size, exchange.group_name)
    )
    y = graph.call_function(functional.wait_tensor.default, (y,))
    if exchange.capacity is not None:
        y = graph.call_function(torch.ops.oproj_pass.trim_rows.default, (y, gemm.input))
    return y


def emit_finish(graph: Graph, y: Node, gemm: Gemm, exchange: Exchange) -> Node:
    """Add the bias, once, and give the sum [T, H] the type and the shape [.., H] of the GEMM's result."""
    x, product = value_of(gemm.input), value_of(gemm.node)
    y = gemm.add_bias(graph, y)
    if _reduce_dtype(gemm, exchange) is not None:
        y = graph.call_function(aten.to.dtype, (y, product.dtype))
    if x.dim() == 2 or exchange.capacity is not None:
        return y
    leading = [_size(graph, gemm.input, dim) for dim in range(x.dim() - 1)]
    return graph.call_function(aten.reshape.default, (y, [*leading, product.shape[-1]]))


def _reduce_dtype(gemm: Gemm, exchange: Exchange) -> torch.dtype | None:
    """The type partial sums travel in, if not their own; an integer sum is exact in its own."""
    return exchange.reduce_dtype if value_of(gemm.node).is_floating_point() else None


def emit_padding(graph: Graph, x: Node, exchange: Exchange, path: str) -> Node:
    """``x`` [.., K] filled up to the exchange's capacity, [capacity, K]; ``x`` itself without one."""
    if exchange.capacity is None:
        return x
    return graph.call_function(torch.ops.oproj_pass.pad_rows.default, (x, exchange.capacity, path))


def _elements_per_rank(graph: Graph, x: Node, flat: Node, exchange: Exchange) -> Node | int:
    if exchange.capacity is not None:
        return exchange.capacity * int(value_of(x).shape[-1]) // exchange.size
    elements = value_of(x).numel()
    if isinstance(elements, int):
        return elements // exchange.size
    count = graph.call_function(aten.sym_numel.default, (flat,))
    return graph.call_function(operator.floordiv, (count, exchange.size))


def _size(graph: Graph, x: Node, dim: int) -> Node | int:
    size = value_of(x).shape[dim]
    return size if isinstance(size, int) else graph.call_function(aten.sym_size.int, (x, dim))
