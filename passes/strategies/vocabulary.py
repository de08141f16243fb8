"""Vocabulary sharding of an embedding: every rank looks all ranks' ids up in its rows of the table.

1. all_to_all: my ids for every rank, each less the first row of that rank's part. So a rank counts from its
   own first row, and no number in its graph is its own.
2. The lookup in my rows; ids of other ranks' rows give zeros.
3. reduce_scatter: my tokens' rows, each from the one rank that has it, so the sum is exact.

The table is filled up with zeros at its end, which no id means. An id outside of the vocabulary reaches every
rank as one that no part holds, so that the lookup itself fails as it does unsharded: on a CPU with an
``IndexError`` on every rank of the group, on a device in whatever way it treats such an index.
"""

from dataclasses import replace

import torch
from torch.fx import Graph, Node

from oproj_pass.passes.gemm.axes import Axis, StoredAxis
from oproj_pass.passes.graph.metadata import propagate, value_key
from oproj_pass.passes.sites.embedding import Lookup
from oproj_pass.passes.strategies.exchange import Exchange
from oproj_pass.passes.strategies.region import PhaseWriter, ShardedRegion
from oproj_pass.passes.strategies.rows import Rows, emit_ready, emit_scatter
from oproj_pass.passes.strategies.sums import emit_reduce_scatter, emit_shape, emit_trim
from oproj_pass.passes.traffic import TokenSizes, whole_rows_nbytes

aten = torch.ops.aten


class Vocabulary:
    """The strategy (see the module)."""

    name = "vocabulary"

    def cuts(self, site: Lookup) -> tuple[StoredAxis, ...]:
        """The vocabulary, padded: what is summed, if one takes a lookup for a product of one-hot rows."""
        return (StoredAxis(Axis.K, site.vocabulary, (site.weight,), site.constants).padded(),)

    def write(self, graph: Graph, site: Lookup, exchange: Exchange) -> ShardedRegion:
        """Insert the exchange of ids, the masked lookup and the sum."""
        exchange = replace(exchange, reduce="scatter")  # exact in any order: one rank has what is not zero
        writer, cuts = PhaseWriter(site.node), self.cuts(site)
        part = cuts[0].part_length(exchange.size)
        table = site.constants[-1] if site.constants else site.weight.node
        column = graph.call_function(aten.unsqueeze.default, (site.ids, -1))
        propagate([column], value_key(site.ids))  # what follows asks for its shape
        site = replace(site, ids=column)
        ids = _emit_ids(graph, site, part, exchange)
        writer.end_exchange()
        found = ids.at(_emit_lookup(graph, table, ids.node, part, exchange.size), site.features)
        writer.end("partial")
        y = emit_reduce_scatter(graph, found, exchange.peers).node
        y = emit_trim(graph, y, site, exchange)
        writer.end("reduce")
        emit_shape(graph, y, site, exchange)
        writer.end("finish")
        return ShardedRegion(site.path, self.name, exchange, cuts, role=site.role, **writer.phases)

    def sent_nbytes(self, token: TokenSizes, size: int) -> int:
        """N-1 ids, for ``in_features`` is 1, and (N-1) * H features."""
        return whole_rows_nbytes(token, size)


def _emit_ids(graph: Graph, site: Lookup, part: int, exchange: Exchange) -> Rows:
    """The ids [.., 1] of every rank, [N*T, 1], counted from the first row of my part."""
    ready = emit_ready(graph, site.ids, exchange, site.path)
    counted = [
        graph.call_function(aten.sub.Tensor, (ready.node, part * rank)) for rank in range(exchange.size)
    ]
    for_ranks = graph.call_function(aten.cat.default, (counted, -1))
    below = graph.call_function(aten.lt.Scalar, (ready.node, 0))
    above = graph.call_function(aten.ge.Scalar, (ready.node, site.vocabulary))
    unknown = graph.call_function(aten.logical_or.default, (below, above))
    for_ranks = graph.call_function(aten.masked_fill.Scalar, (for_ranks, unknown, part * exchange.size))
    return emit_scatter(graph, Rows(for_ranks, ready.count, exchange.size), exchange.peers)


def _emit_lookup(graph: Graph, table: Node, ids: Node, part: int, size: int) -> Node:
    """The rows of my part [N*T, H], zeros for those of others."""
    ids = graph.call_function(aten.reshape.default, (ids, [-1]))
    before = graph.call_function(aten.lt.Scalar, (ids, 0))
    behind = graph.call_function(aten.ge.Scalar, (ids, part))
    known = graph.call_function(aten.lt.Scalar, (ids, part * size))
    behind = graph.call_function(aten.logical_and.default, (behind, known))
    elsewhere = graph.call_function(aten.logical_or.default, (before, behind))
    mine = graph.call_function(aten.masked_fill.Scalar, (ids, elsewhere, 0))
    rows = graph.call_function(aten.embedding.default, (table, mine))
    elsewhere = graph.call_function(aten.unsqueeze.default, (elsewhere, -1))
    return graph.call_function(aten.masked_fill.Scalar, (rows, elsewhere, 0))
