"""What the search through a graph records: attentions, the GEMMs that they reach, and where they end."""

from dataclasses import dataclass, field

from torch.fx import Node

from oproj_pass.passes.gemm.gemm import Gemm
from oproj_pass.passes.graph.provenance import common_path, parent_path


@dataclass(frozen=True)
class End:
    """Where a result's way ended without a projection; ``weight`` if it met one in an unknown form."""

    node: Node
    reason: str
    weight: Node | None = None


@dataclass(eq=False)
class Attention:
    """One attention (or, with ``softmax`` False, another token mixer) and where its result went.

    ``path``: its module's; None where the graph names no modules. ``refusal``: why it does not count as one.
    """

    node: Node
    path: str | None
    softmax: bool
    refusal: str | None = None
    ends: list[End] = field(default_factory=list)

    @property
    def is_attention(self) -> bool:
        """Whether it is a softmax-weighted sum over tokens, not only another token mixer."""
        return self.softmax and self.refusal is None


@dataclass(eq=False)
class Reached:
    """A GEMM with a stored weight that attention results reach."""

    gemm: Gemm
    path: str
    sources: frozenset[Attention]
    feeds: Node | None = None  # the GEMM or attention of the same module that reads its result

    @property
    def is_attention(self) -> bool:
        """Whether a softmax over tokens reaches it, not only another token mixer."""
        return any(source.is_attention for source in self.sources)

    @property
    def scope(self) -> str | None:
        """The module that holds both the attention and this GEMM, ``""`` for the root, None if not known."""
        paths = {source.path for source in self.sources}
        if "" in paths:
            return ""
        common = {common_path(path, self.path) for path in paths if path is not None}
        return min(common, key=len, default="") or parent_path(self.path) or None
