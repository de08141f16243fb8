"""The site of an embedding: a lookup of ids in a stored table, of which each rank can hold a part."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch.fx import Node

from oproj_pass.passes.gemm.axes import TensorAxis
from oproj_pass.passes.graph.provenance import value_of


@dataclass(frozen=True)
class Lookup:
    """``y [.., H] = table [V, H][ids [..]]``.

    ``weight``: where the vocabulary lies on the stored table; ``constants``: the nodes between it and the
    lookup, such as a cast. ``padding_idx`` names a row that is never trained, and changes no lookup.
    ``names``: the paths in the model of the stored tensors.
    """

    path: str
    names: Mapping[Node, str]
    node: Node
    ids: Node
    weight: TensorAxis
    constants: tuple[Node, ...] = ()
    padding_idx: int | None = None
    role: str = "embedding"
    scheme: str = "dense"

    @property
    def input(self) -> Node:
        """The ids."""
        return self.ids

    @property
    def vocabulary(self) -> int:
        """V."""
        return int(value_of(self.weight.node).shape[self.weight.dim])

    @property
    def features(self) -> int:
        """H."""
        return int(value_of(self.node).shape[-1])

    @property
    def stored(self) -> tuple[TensorAxis, ...]:
        """The table."""
        return (self.weight,)

    @property
    def readers(self) -> frozenset[Node]:
        """The lookup."""
        return frozenset((self.node,))

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self.weight.nbytes
