"""Grid sharding: rank (i, j) of an a x b grid holds the weight's block [H/b, K/a], and multiplies all tokens.

1. all_to_all over a, all_gather over b: every rank's tokens, the features of my part of K.
2. The product with my block: partial sums of my part of H.
3. The sum over a (``sums``): that part of H, complete, of the tokens of b ranks; the bias is added here.
4. all_to_all over b: my tokens' features from every part of H.

With a = N it is row sharding, with b = N column; between them it may send fewer bytes than either.
"""

from torch.fx import Graph

from oproj_pass.passes.gemm.axes import Axis, StoredAxis
from oproj_pass.passes.gemm.following_step import CannotFollow
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.sites.projection import Projection
from oproj_pass.passes.strategies.exchange import Exchange
from oproj_pass.passes.strategies.operands import emit_operands
from oproj_pass.passes.strategies.region import PhaseWriter, ShardedRegion
from oproj_pass.passes.strategies.rows import emit_return
from oproj_pass.passes.strategies.sums import emit_product_type, emit_shape, emit_sum, emit_trim
from oproj_pass.passes.traffic import TokenSizes, best_split, sent_nbytes


class Grid:
    """The strategy (see the module). The exchange's mesh says over whom K and H are cut.

    ``shape``: (a, b); by default the split of the ranks that sends the fewest bytes.
    """

    name = "grid"

    def __init__(self, shape: tuple[int, int] | None = None) -> None:
        self.shape = shape

    def cuts(self, site: Projection) -> tuple[StoredAxis, ...]:
        """K and H; the bias's H where it can be cut."""
        gemm, bias = site.gemm, site.bias_along_output()
        is_scaled = gemm.bias is not None and not value_of(gemm.bias).is_floating_point()
        if is_scaled and (bias is None or gemm.row_scales):
            raise CannotFollow("goes with an int32 bias in units of scales of rows that other ranks sum")
        return (site.along(Axis.K), site.along(Axis.H), *([] if bias is None else [bias]))

    def write(self, graph: Graph, site: Projection, exchange: Exchange) -> ShardedRegion:
        """Insert both exchanges of rows, the partial product, its sum and the way back."""
        gemm, cuts, writer = site.gemm, self.cuts(site), PhaseWriter(site.gemm.node)
        part = site.out_features // exchange.over(Axis.H).size
        rows, scales = emit_operands(graph, gemm, exchange, (Axis.K, Axis.H), site.path)
        writer.end_exchange()
        product = gemm.emit_partial(graph, rows.node, *scales, out_features=part)
        writer.end("partial")
        summed = emit_sum(graph, rows.at(product, part), gemm, exchange, exchange.over(Axis.K))
        is_bias_cut = len(cuts) > 2
        y = gemm.add_bias(graph, summed.node) if is_bias_cut else summed.node
        y = emit_product_type(graph, y, gemm, exchange)
        y = emit_return(graph, summed.at(y), exchange.over(Axis.H)).node
        y = emit_trim(graph, y, gemm, exchange)
        writer.end("reduce")
        y = y if is_bias_cut else gemm.add_bias(graph, y)
        emit_shape(graph, y, gemm, exchange)
        writer.end("finish")
        return ShardedRegion(site.path, self.name, exchange, cuts, role=site.role, **writer.phases)

    def sent_nbytes(self, token: TokenSizes, size: int) -> int:
        """K/a * (N-1) features, H * (a-1) partial sums of a b-th of H each, and H/b * (b-1) results."""
        return sent_nbytes(token, *(self.shape or best_split(token, size)))
