"""Rows on their way between ranks: what is sent, and the collectives that send it, as plain graph nodes.

Works on a Dynamo graph and on an ATen graph, with static and with symbolic token counts.
"""

import operator
from dataclasses import dataclass
from math import prod

import torch
from torch.fx import Graph, Node

from oproj_pass.passes.graph.collectives import FLOAT8
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.strategies import capacity, check_rows  # noqa: F401  (they register operators)
from oproj_pass.passes.strategies.exchange import Exchange, Peers

aten, functional = torch.ops.aten, torch.ops._c10d_functional


@dataclass(frozen=True)
class Rows:
    """``node`` [.., features] holds ``count`` rows, None where their number is symbolic."""

    node: Node
    count: int | None
    features: int
    is_contiguous: bool = True

    def at(self, node: Node, features: int | None = None) -> "Rows":
        """As many rows at another node, of other features if ``features`` are given."""
        return Rows(node, self.count, self.features if features is None else features)


def emit_ready(graph: Graph, x: Node, exchange: Exchange, path: str) -> Rows:
    """``x`` [.., K] as it is sent: counted and filled up if the exchange says so; float8 as bytes."""
    node, value = x, value_of(x)
    if exchange.control_group_name is not None:
        check = torch.ops.oproj_pass.check_rows.default
        node = graph.call_function(check, (node, exchange.control_group_name, path))
    node = emit_padding(graph, node, exchange, path)
    if value.dtype in FLOAT8:
        node = graph.call_function(aten.view.dtype, (node, torch.uint8))
    is_contiguous = value.is_contiguous() or exchange.capacity is not None
    return Rows(node, row_count(x, exchange), value.shape[-1], is_contiguous)


def emit_arrived(graph: Graph, rows: Rows, x: Node) -> Rows:
    """``rows`` that arrived, in the type of ``x``."""
    dtype = value_of(x).dtype
    if dtype not in FLOAT8:
        return rows
    return rows.at(graph.call_function(aten.view.dtype, (rows.node, dtype)))


def emit_padding(graph: Graph, x: Node, exchange: Exchange, path: str) -> Node:
    """``x`` [.., K] filled up to the exchange's capacity, [capacity, K]; ``x`` itself without one."""
    if exchange.capacity is None:
        return x
    return graph.call_function(torch.ops.oproj_pass.pad_rows.default, (x, exchange.capacity, path))


def row_count(x: Node, exchange: Exchange) -> int | None:
    """The rows that an exchange of ``x`` [.., K] carries for this rank, None where that is symbolic."""
    count = exchange.capacity or prod(value_of(x).shape[:-1])
    return count if isinstance(count, int) else None


def emit_gather(graph: Graph, rows: Rows, peers: Peers) -> Rows:
    """Give every peer my rows: [T, K] -> [n*T, K]."""
    node = graph.call_function(aten.reshape.default, (rows.node, [-1, rows.features]))
    if not rows.is_contiguous:
        node = graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
    node = graph.call_function(
        functional.all_gather_into_tensor.default, (node, peers.size, peers.group_name)
    )
    node = graph.call_function(functional.wait_tensor.default, (node,))
    return Rows(node, _times(rows.count, peers.size), rows.features)


def emit_scatter(graph: Graph, rows: Rows, peers: Peers) -> Rows:
    """Trade my tokens' K features for every peer's tokens and my features: [T, K] -> [n*T, K/n]."""
    part = rows.features // peers.size
    packed = graph.call_function(aten.reshape.default, (rows.node, [-1, peers.size, part]))
    packed = graph.call_function(aten.permute.default, (packed, [1, 0, 2]))
    received = _emit_all_to_all(graph, rows.at(packed), peers)
    node = graph.call_function(aten.reshape.default, (received, [-1, part]))
    return Rows(node, _times(rows.count, peers.size), part)


def emit_swapped(graph: Graph, rows: Rows, outer: int, inner: int) -> Rows:
    """Rows in the order [inner, outer, T] that came in the order [outer, inner, T]."""
    node = graph.call_function(aten.reshape.default, (rows.node, [outer, inner, -1, rows.features]))
    node = graph.call_function(aten.permute.default, (node, [1, 0, 2, 3]))
    return rows.at(graph.call_function(aten.reshape.default, (node, [-1, rows.features])))


def emit_return(graph: Graph, part: Rows, peers: Peers) -> Rows:
    """Trade my features of every peer's tokens for all features of my tokens: [n*T, H/n] -> [T, H]."""
    by_peer = emit_parts(graph, part, peers)
    by_row = graph.call_function(aten.permute.default, (by_peer, [1, 0, 2]))
    features = peers.size * part.features
    node = graph.call_function(aten.reshape.default, (by_row, [-1, features]))
    return Rows(node, part.count and part.count // peers.size, features)


def emit_parts(graph: Graph, part: Rows, peers: Peers) -> Node:
    """Trade my part of every peer's rows for every peer's part of mine: [n*T, H] -> [n, T, H]."""
    received = _emit_all_to_all(graph, part, peers)
    return graph.call_function(aten.reshape.default, (received, [peers.size, -1, part.features]))


def emit_unpadded(graph: Graph, rows: Rows, features: int) -> Node:
    """The first ``features`` of each row, without what their axis was filled up with."""
    if rows.features == features:
        return rows.node
    first = graph.call_function(aten.slice.Tensor, (rows.node, 1, 0, features))
    return graph.call_function(aten.clone.default, (first,), {"memory_format": torch.contiguous_format})


def _emit_all_to_all(graph: Graph, rows: Rows, peers: Peers) -> Node:
    """The wire format is flat, since one Ascend kernel reads element counts as row counts."""
    flat = graph.call_function(aten.reshape.default, (rows.node, [-1]))
    count: Node | int
    if rows.count is None:
        elements = graph.call_function(aten.sym_numel.default, (flat,))
        count = graph.call_function(operator.floordiv, (elements, peers.size))
    else:
        count = rows.count * rows.features // peers.size
    splits = [count] * peers.size
    received = graph.call_function(
        functional.all_to_all_single.default, (flat, splits, splits, peers.group_name)
    )
    return graph.call_function(functional.wait_tensor.default, (received,))


def _times(count: int | None, size: int) -> int | None:
    return None if count is None else count * size
