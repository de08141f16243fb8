"""What a site in two steps is: first products that make I features, and the GEMM that sums over them."""

from collections.abc import Sequence

from torch.fx import Node

from oproj_pass.passes.gemm.axes import StoredAxis
from oproj_pass.passes.gemm.gemm import Gemm
from oproj_pass.passes.gemm.literals import Literal


class TwoSteps:
    """The part of such a site that does not depend on its first products.

    Attributes:
        path: the module that holds it.
        down: the GEMM that sums over I.
        literals: the sizes of I that the nodes between state.
        rows: the sizes of rows that those nodes state.
    """

    path: str
    down: Gemm
    literals: Sequence[Literal]
    rows: Sequence[Literal]

    @property
    def cuts(self) -> tuple[StoredAxis, ...]:
        """What I lies on, GEMM by GEMM."""
        raise NotImplementedError

    @property
    def node(self) -> Node:
        """The node of the last GEMM."""
        return self.down.node

    @property
    def scheme(self) -> str:
        """How the last GEMM's weight is stored and multiplied."""
        return self.down.scheme

    @property
    def intermediate(self) -> int:
        """I."""
        return self.down.k.extent

    @property
    def constants(self) -> tuple[Node, ...]:
        """The nodes between what is stored and the products."""
        return tuple(node for cut in self.cuts for node in cut.constants)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is cut, unsharded."""
        return sum(tensor.nbytes for cut in self.cuts for tensor in cut.tensors)
