"""Sharding of a projection in two steps: every rank projects some groups of heads for all ranks' tokens.

1. all_to_all: my tokens' heads of every group for every rank's tokens and the heads of my groups.
2. The product with my groups' matrices. What lies between it and the last GEMM stays as it is, on more rows
   and fewer features.
3. The last GEMM with the columns of my groups, and the sum over ranks (``narrowing``).

One exchange before both weights and one behind them, as of a projection in one step; the groups' matrices are
shared too, and what travels are the heads, not the fewer features that the groups make of them.
"""

from dataclasses import replace

import torch
from torch import SymInt
from torch.fx import Graph, Node

from oproj_pass.passes.gemm.axes import Axis, StoredAxis
from oproj_pass.passes.graph.effects import is_mere_check
from oproj_pass.passes.graph.metadata import propagate, value_key
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.sites.grouped import Grouped
from oproj_pass.passes.strategies.exchange import Exchange
from oproj_pass.passes.strategies.narrowing import emit_narrowing, emit_stacked, require_rows_unstated
from oproj_pass.passes.strategies.operands import emit_features
from oproj_pass.passes.strategies.region import PhaseWriter, ShardedRegion
from oproj_pass.passes.traffic import TokenSizes, sent_nbytes


class Group:
    """The strategy (see the module)."""

    name = "group"

    def cuts(self, site: Grouped) -> tuple[StoredAxis, ...]:
        """What the groups make, and the last GEMM sums over: in whole groups."""
        return site.cuts

    def write(self, graph: Graph, site: Grouped, exchange: Exchange) -> ShardedRegion:
        """Insert both products with my groups, the exchange and the sum, all where the last GEMM stands."""
        require_rows_unstated(site, exchange)
        writer = PhaseWriter(site.node)
        x = _emit_heads(graph, site)
        rows = emit_features(graph, x, exchange, (Axis.K,), site.path)
        writer.end_exchange()
        product = site.first.emit_part(graph, rows.node, exchange.size)
        joined = _emit_joined(graph, site, product, x, exchange)
        _replace_joined(site, joined)
        for node in site.inner:
            _erase_checks(node)
            site.node.prepend(node)
        emit_narrowing(graph, _reading(site, joined), x, exchange, writer)
        return ShardedRegion(site.path, self.name, exchange, self.cuts(site), role=site.role, **writer.phases)

    def sent_nbytes(self, token: TokenSizes, size: int) -> int:
        """Features of K * (N-1)/N, K those of all heads, and H * (N-1) partial sums."""
        return sent_nbytes(token, size, 1)


def _emit_heads(graph: Graph, site: Grouped) -> Node:
    """My tokens' heads, group by group, as rows [.., K] in the shape of the rows between."""
    sizes = [-1 if isinstance(size, SymInt) else size for size in value_of(site.joined).shape[:-1]]
    x = site.first.emit_rows(graph, sizes)
    propagate([*x.all_input_nodes, x], value_key(site.node))
    return x


def _emit_joined(graph: Graph, site: Grouped, product: Node, x: Node, exchange: Exchange) -> Node:
    """My groups' results [G/N, N*T, r] as rows, in as many dimensions as there were."""
    by_row = graph.call_function(torch.ops.aten.permute.default, (product, [1, 0, 2]))
    return emit_stacked(graph, by_row, x, site.intermediate // exchange.size, exchange)


def _reading(site: Grouped, joined: Node) -> Grouped:
    """The site whose last GEMM reads the new rows, if it read the old ones itself."""
    if site.down.input is not site.joined:
        return site
    return replace(site, down=replace(site.down, input=joined))


def _replace_joined(site: Grouped, joined: Node) -> None:
    """Let what lies between read ``joined``, and remove the whole product and its layout."""
    _erase_checks(site.joined)  # which come before what takes its place
    site.joined.replace_all_uses_with(joined)
    chain = [site.joined]
    while chain[-1] is not site.first.node:
        chain.append(chain[-1].all_input_nodes[0])
    for node in chain:
        _erase_checks(node)
        node.graph.erase_node(node)


def _erase_checks(node: Node) -> None:
    """Remove what asserts the type of a node that moves or goes."""
    for check in [user for user in node.users if is_mere_check(user)]:
        check.graph.erase_node(check)
