"""Sharding of an MLP: every rank computes a part of the intermediate features of all ranks' tokens.

1. all_gather: every rank's tokens, once for all first GEMMs that read them.
2. The first GEMMs with my part of their output features, biases and all; a fused gate and up with a part of
   each. What lies between them and the last GEMM stays as it is, on more rows and fewer features.
3. The last GEMM with my part of its input features, and the sum over ranks (``narrowing``).
"""

from torch.fx import Graph, Node

from oproj_pass.passes.gemm.axes import Axis, StoredAxis
from oproj_pass.passes.gemm.gemm import Gemm, RowScale
from oproj_pass.passes.graph.metadata import inherit_origin
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.sites.mlp import Mlp
from oproj_pass.passes.sites.same_rows import same_rows
from oproj_pass.passes.strategies.exchange import Exchange
from oproj_pass.passes.strategies.narrowing import emit_narrowing, emit_stacked, require_rows_unstated
from oproj_pass.passes.strategies.operands import emit_features, emit_scale
from oproj_pass.passes.strategies.region import PhaseWriter, ShardedRegion
from oproj_pass.passes.traffic import TokenSizes, whole_rows_nbytes

_ROWS = (Axis.H,)  # what goes to a product that is cut along H: whole rows


class ColumnRow:
    """The strategy (see the module)."""

    name = "column_row"

    def cuts(self, site: Mlp) -> tuple[StoredAxis, ...]:
        """The intermediate axis: what the first GEMMs produce, piece by piece, and what the last one sums."""
        return site.cuts

    def write(self, graph: Graph, site: Mlp, exchange: Exchange) -> ShardedRegion:
        """Rewrite the first GEMMs and the sizes between, and insert the partial sums and their sum."""
        require_rows_unstated(site, exchange)
        exchanged, products = _rewrite_ups(graph, site, exchange)
        writer = PhaseWriter(site.node)
        emit_narrowing(graph, site, site.input, exchange, writer)
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
    """My part of the features of every rank's rows, in as many dimensions as the input has."""
    part = value_of(up.node).shape[-1] // exchange.size
    product = up.emit_partial(graph, rows, *scales, bias=up.bias, out_features=part)
    if value_of(up.input).dim() == 2:
        return product
    return emit_stacked(graph, product, up.input, part, exchange)
