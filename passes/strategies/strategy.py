"""What a strategy is: it asks for cuts along axes, writes the exchange around a product, knows its bytes.

It knows no rank: every rank writes the same nodes, and only the parts of the weights differ.
"""

from typing import Protocol, TypeVar

from torch.fx import Graph

from oproj_pass.passes.gemm.axes import StoredAxis
from oproj_pass.passes.sites.site import Site
from oproj_pass.passes.strategies.exchange import Exchange
from oproj_pass.passes.strategies.region import ShardedRegion
from oproj_pass.passes.traffic import TokenSizes

_Site = TypeVar("_Site", bound=Site, contravariant=True)


class Strategy(Protocol[_Site]):
    """One way to share the work and the weights of one kind of site among the ranks of a group."""

    name: str

    def cuts(self, site: _Site) -> tuple[StoredAxis, ...]:
        """The axes that are cut into equal parts, one a rank; ``CannotFollow`` where they cannot be."""

    def write(self, graph: Graph, site: _Site, exchange: Exchange) -> ShardedRegion:
        """Insert, before the site's node, what takes its place; the region's last node is the result."""

    def sent_nbytes(self, token: TokenSizes, size: int) -> int:
        """Bytes that one of ``size`` ranks sends to the others for each of its tokens."""
