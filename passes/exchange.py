"""Emits the two collectives around a sharded projection, as plain graph nodes.

Decides how rows are packed for the wire; the GEMM between the two halves is the caller's. Works on a Dynamo
graph and on an ATen graph, with static and with symbolic token counts.
"""

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from oproj_pass.passes import uniform  # noqa: F401  (registers oproj_pass::check_rows)
from oproj_pass.passes.provenance import value_of

aten, functional = torch.ops.aten, torch.ops._c10d_functional


@dataclass(frozen=True)
class Exchange:
    """Who exchanges, and how.

    ``size``: ranks of the group, N. ``group_name``: the c10d name of its process group. ``reduce_dtype``: the
    type partial sums travel in, the product's own if None. ``control_group_name``: if set, ranks compare
    their row counts over that group before each exchange and raise instead of hanging.
    """

    size: int
    group_name: str
    reduce_dtype: torch.dtype | None = None
    control_group_name: str | None = None


def emit_scatter(graph: Graph, x: Node, in_features: int, exchange: Exchange, path: str) -> Node:
    """Trade my tokens' K features for every rank's tokens and my features: [.., K] -> [N*T, K/N].

    The wire format is flat, since one Ascend kernel reads element counts as row counts.
    """
    size, part = exchange.size, in_features // exchange.size
    rows = x
    if exchange.control_group_name is not None:
        check = torch.ops.oproj_pass.check_rows.default
        rows = graph.call_function(check, (x, exchange.control_group_name, path))
    packed = graph.call_function(aten.reshape.default, (rows, [-1, size, part]))
    packed = graph.call_function(aten.permute.default, (packed, [1, 0, 2]))
    flat = graph.call_function(aten.reshape.default, (packed, [-1]))
    splits = [_elements_per_rank(graph, x, flat, size)] * size
    received = graph.call_function(
        functional.all_to_all_single.default, (flat, splits, splits, exchange.group_name)
    )
    received = graph.call_function(functional.wait_tensor.default, (received,))
    return graph.call_function(aten.reshape.default, (received, [-1, part]))


def emit_reduce(
    graph: Graph, partial: Node, x: Node, bias: Node | None, exchange: Exchange, site: Any
) -> Node:
    """Sum the partial products and keep my tokens: [N*T, H] -> [.., H], bias added once, after the sum."""
    if exchange.reduce_dtype is not None:
        partial = graph.call_function(aten.to.dtype, (partial, exchange.reduce_dtype))
    y = graph.call_function(
        functional.reduce_scatter_tensor.default, (partial, "sum", exchange.size, exchange.group_name)
    )
    y = graph.call_function(functional.wait_tensor.default, (y,))
    if bias is not None:
        y = graph.call_function(aten.add.Tensor, (y, bias))
    if exchange.reduce_dtype is not None:
        y = graph.call_function(aten.to.dtype, (y, site.dtype))
    shape = value_of(x).shape
    if len(shape) == 2:
        return y
    leading = [_size(graph, x, dim) for dim in range(len(shape) - 1)]
    return graph.call_function(aten.reshape.default, (y, [*leading, site.out_features]))


def _elements_per_rank(graph: Graph, x: Node, flat: Node, size: int) -> Node | int:
    elements = value_of(x).numel()
    if isinstance(elements, int):
        return elements // size
    count = graph.call_function(aten.sym_numel.default, (flat,))
    return graph.call_function(operator.floordiv, (count, size))


def _size(graph: Graph, x: Node, dim: int) -> Node | int:
    size = value_of(x).shape[dim]
    return size if isinstance(size, int) else graph.call_function(aten.sym_size.int, (x, dim))
