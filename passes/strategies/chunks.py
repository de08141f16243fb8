"""Chunks in flight: a step's rows in several parts, so that one part's exchange runs under another's product.

1. Each chunk of rows is written by the site's strategy, as if it were a step.
2. All nodes are put in the order of how many collectives they wait for, chunk by chunk among equals: first
   every chunk's sending starts, then each chunk is multiplied as it arrives and its second half starts, and
   at the end the results are awaited.
3. The results are joined.

Every row goes through the same operations, so results are bit-equal to the unchunked ones wherever a GEMM's
order of addition does not depend on its number of rows. It is left out, with the reason, where it cannot pay.
"""

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch.fx import Graph, Node

from oproj_pass.passes.gemm.axes import StoredAxis
from oproj_pass.passes.gemm.gemm import RowScale
from oproj_pass.passes.graph.metadata import propagate, value_key
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.sites.projection import Projection
from oproj_pass.passes.sites.site import Site
from oproj_pass.passes.strategies.exchange import Exchange
from oproj_pass.passes.strategies.region import ShardedRegion
from oproj_pass.passes.strategies.strategy import Strategy
from oproj_pass.passes.strategies.sums import emit_shape
from oproj_pass.passes.strategies.token_sizes import token_sizes

aten, functional = torch.ops.aten, torch.ops._c10d_functional


@dataclass(frozen=True)
class _Chunk(Projection):
    """A site of fewer rows; its bias can be cut where the whole site's can, whatever was written since."""

    whole_bias: StoredAxis | None = None

    def bias_along_output(self) -> StoredAxis | None:
        """As for the whole site."""
        return self.whole_bias


def unchunked_reason(site: Site, strategy: Strategy[Any], exchange: Exchange) -> str | None:
    """Why the rows of a site stay together although chunks are asked for, None if they do not."""
    if not isinstance(site, Projection):
        return "only the rows of projections are exchanged in chunks"
    rows = prod(value_of(site.gemm.input).shape[:-1])
    if exchange.capacity is not None:
        return "its exchange has a fixed capacity"
    if not isinstance(rows, int):
        return "its number of rows is symbolic"
    if rows < exchange.chunks:
        return f"it has {rows} rows"
    sent = rows // exchange.chunks * strategy.sent_nbytes(token_sizes(site), exchange.size)
    if sent < exchange.least_chunk_nbytes:
        return (
            f"a chunk would send {sent} bytes, fewer than starting it costs ({exchange.least_chunk_nbytes})"
        )
    return None


def write_chunks(
    graph: Graph, site: Projection, strategy: Strategy[Any], exchange: Exchange
) -> ShardedRegion:
    """Insert, before the site's GEMM, what takes its place, in chunks that are in flight together."""
    before = site.gemm.node.prev
    bias = site.bias_along_output()
    bounds = _bounds(prod(value_of(site.gemm.input).shape[:-1]), exchange.chunks)
    sites = [_chunk_of(graph, site, start, end, bias) for start, end in bounds]
    slices = _nodes_between(before, site.gemm.node)
    regions = [strategy.write(graph, chunk, exchange) for chunk in sites]
    by_waits: dict[int, list[Node]] = {}
    for region in regions:
        for node, waits in _waits_before(region).items():
            by_waits.setdefault(waits, []).append(node)
    stages = [by_waits[waits] for waits in sorted(by_waits)]
    for node in (node for stage in stages for node in stage):
        site.gemm.node.prepend(node)
    last = stages[-1][-1]
    joined = graph.call_function(aten.cat.default, ([region.nodes[-1] for region in regions],))
    emit_shape(graph, joined, site.gemm, exchange)
    return ShardedRegion(
        site.path,
        strategy.name,
        exchange,
        regions[0].cuts,
        role=site.role,
        pack=slices,
        exchange=tuple(stages[0]),
        partial=tuple(node for stage in stages[1:-1] for node in stage),
        reduce=tuple(stages[-1]),
        finish=_nodes_between(last, site.gemm.node),
    )


def _bounds(rows: int, chunks: int) -> list[tuple[int, int]]:
    """Where each chunk starts and ends; the first ones have a row more where they are not equal."""
    ends = [rows * (index + 1) // chunks for index in range(chunks)]
    return list(zip([0, *ends], ends, strict=False))


def _chunk_of(graph: Graph, site: Projection, start: int, end: int, bias: StoredAxis | None) -> _Chunk:
    rows = prod(value_of(site.gemm.input).shape[:-1])
    scales = tuple(_scale_of(graph, scale, rows, start, end) for scale in site.gemm.row_scales)
    gemm = replace(site.gemm, input=_rows_of(graph, site.gemm.input, rows, start, end), row_scales=scales)
    return _Chunk(site.path, gemm, site.names, site.role, site.axis, whole_bias=bias)


def _scale_of(graph: Graph, scale: RowScale, rows: int, start: int, end: int) -> RowScale:
    if value_of(scale.node).numel() == 1:  # one scale for all rows
        return scale
    return replace(scale, node=_rows_of(graph, scale.node, rows, start, end))


def _rows_of(graph: Graph, tensor: Node, rows: int, start: int, end: int) -> Node:
    """Some of the rows of [.., n], as a matrix."""
    matrix = graph.call_function(aten.reshape.default, (tensor, [rows, -1]))
    part = graph.call_function(aten.slice.Tensor, (matrix, 0, start, end))
    propagate([matrix, part], value_key(tensor))
    return part


def _waits_before(region: ShardedRegion) -> dict[Node, int]:
    """How many collectives each node has to wait for, one after the other."""
    waits: dict[Node, int] = {}
    for node in region.nodes:
        behind = max((waits.get(source, 0) for source in node.all_input_nodes), default=0)
        waits[node] = behind + (node.target is functional.wait_tensor.default)
    return waits


def _nodes_between(first: Node, last: Node) -> tuple[Node, ...]:
    nodes, node = [], first.next
    while node is not last:
        nodes.append(node)
        node = node.next
    return tuple(nodes)
