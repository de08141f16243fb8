"""What a strategy is: it asks for cuts along axes, writes the exchange around a product, knows its bytes.

It knows no rank: every rank writes the same nodes, and only the parts of the weights differ.
"""

from typing import Protocol

from torch.fx import Graph

from oproj_pass.passes.gemm.axes import StoredAxis
from oproj_pass.passes.sites.projection import Projection
from oproj_pass.passes.strategies.exchange import Exchange
from oproj_pass.passes.strategies.region import ShardedRegion
from oproj_pass.passes.strategies.traffic import TokenSizes


class Strategy(Protocol):
    """One way to share a site's work and weight among the ranks of a group."""

    name: str

    def cuts(self, site: Projection) -> tuple[StoredAxis, ...]:
        """The axes that are cut into equal parts, one a rank; ``CannotFollow`` where they cannot be."""

    def write(self, graph: Graph, site: Projection, exchange: Exchange) -> ShardedRegion:
        """Insert, before the site's GEMM, what takes its place; the region's last node is the result."""

    def sent_nbytes(self, token: TokenSizes, size: int) -> int:
        """Bytes that one of ``size`` ranks sends to the others for each of its tokens."""
