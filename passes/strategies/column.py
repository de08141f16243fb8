"""Column sharding: every rank computes a part of H of all ranks' tokens; nothing is added up over ranks.

1. all_gather: every rank's tokens, all their features.
2. The product with my part of the output features, bias and all: the operator that the model called.
3. all_to_all: my tokens' features from every rank.

So results are those of the unsharded product, bit by bit, wherever a GEMM's order of addition does not depend
on how many rows and output features it has. A bias that something else reads too is added after the exchange.
"""

from torch.fx import Graph

from oproj_pass.passes.gemm.axes import Axis, StoredAxis
from oproj_pass.passes.gemm.following_step import CannotFollow
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.sites.projection import Projection
from oproj_pass.passes.strategies.exchange import Exchange
from oproj_pass.passes.strategies.operands import emit_operands
from oproj_pass.passes.strategies.region import PhaseWriter, ShardedRegion
from oproj_pass.passes.strategies.rows import emit_return, emit_unpadded
from oproj_pass.passes.strategies.sums import emit_shape, emit_trim
from oproj_pass.passes.traffic import TokenSizes, sent_nbytes


class Column:
    """The strategy (see the module)."""

    name = "column"

    def cuts(self, site: Projection) -> tuple[StoredAxis, ...]:
        """H, the produced axis: the weight's, its scales', and the bias's where it can be cut.

        The vocabulary of a head is filled up with zeros; any other axis has to fall into equal parts.
        """
        bias, cut_bias = site.gemm.bias, site.bias_along_output()
        if bias is not None and cut_bias is None and not value_of(bias).is_floating_point():
            raise CannotFollow("goes with an int32 bias that is not stored for this projection alone")
        along_h = site.along(Axis.H)
        cuts = (along_h, *([] if cut_bias is None else [cut_bias]))
        return tuple(cut.padded(along_h.unit) for cut in cuts) if site.role == "lmhead" else cuts

    def write(self, graph: Graph, site: Projection, exchange: Exchange) -> ShardedRegion:
        """Insert the gathering of rows, the product and the way back of its features."""
        gemm, peers, cuts = site.gemm, exchange.peers, self.cuts(site)
        writer, part = PhaseWriter(gemm.node), cuts[0].part_length(exchange.size)
        rows, scales = emit_operands(graph, gemm, exchange, (Axis.H,), site.path)
        writer.end_exchange()
        is_bias_cut = len(cuts) > 1
        bias = gemm.bias if is_bias_cut else None
        product = gemm.emit_partial(graph, rows.node, *scales, bias=bias, out_features=part)
        writer.end("partial")
        y = emit_unpadded(graph, emit_return(graph, rows.at(product, part), peers), site.out_features)
        y = emit_trim(graph, y, gemm, exchange)
        writer.end("reduce")
        y = y if is_bias_cut else gemm.add_bias(graph, y)
        emit_shape(graph, y, gemm, exchange)
        writer.end("finish")
        return ShardedRegion(site.path, self.name, exchange, cuts, role=site.role, **writer.phases)

    def sent_nbytes(self, token: TokenSizes, size: int) -> int:
        """K * (N-1) features, and H/N * (N-1) results."""
        return sent_nbytes(token, 1, size)
