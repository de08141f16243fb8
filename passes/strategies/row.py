"""Row sharding: every rank multiplies a slice of K of all ranks' tokens, and the partial sums are added up.

1. all_to_all: my tokens' K features for every rank's tokens and my features.
2. The product with the weight's columns of my features: partial sums of all tokens.
3. The sum (``sums``): my tokens, complete; the bias is added once, behind it.
"""

from torch.fx import Graph

from oproj_pass.passes.gemm.axes import Axis, StoredAxis
from oproj_pass.passes.sites.projection import Projection
from oproj_pass.passes.strategies.exchange import Exchange
from oproj_pass.passes.strategies.operands import emit_operands
from oproj_pass.passes.strategies.region import PhaseWriter, ShardedRegion
from oproj_pass.passes.strategies.sums import emit_total
from oproj_pass.passes.traffic import TokenSizes, sent_nbytes


class Row:
    """The strategy (see the module)."""

    name = "row"

    def cuts(self, site: Projection) -> tuple[StoredAxis, ...]:
        """K, the summed axis."""
        return (site.along(Axis.K),)

    def write(self, graph: Graph, site: Projection, exchange: Exchange) -> ShardedRegion:
        """Insert the exchange, the partial product and the sum."""
        gemm, writer = site.gemm, PhaseWriter(site.gemm.node)
        rows, scales = emit_operands(graph, gemm, exchange, (Axis.K,), site.path)
        writer.end_exchange()
        partial = rows.at(gemm.emit_partial(graph, rows.node, *scales), site.out_features)
        writer.end("partial")
        emit_total(graph, partial, gemm, gemm, exchange, writer)
        return ShardedRegion(site.path, self.name, exchange, self.cuts(site), role=site.role, **writer.phases)

    def sent_nbytes(self, token: TokenSizes, size: int) -> int:
        """K * (N-1)/N features and H * (N-1) partial sums, whichever way those are added."""
        return sent_nbytes(token, size, 1)
