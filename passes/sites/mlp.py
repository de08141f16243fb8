"""The site of an MLP: the GEMMs that widen, what lies between, and the GEMM that sums."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from torch.fx import Node

from oproj_pass.passes.gemm.axes import Axis, StoredAxis, TensorAxis
from oproj_pass.passes.gemm.gemm import Gemm
from oproj_pass.passes.gemm.literals import Literal
from oproj_pass.passes.sites.two_steps import TwoSteps


@dataclass(frozen=True)
class Mlp(TwoSteps):
    """``y [.., H] = inner(x [.., H] @ up, ..) [.., I] @ down``, every step between elementwise along I.

    ``ups``: the GEMMs of one x: gate and up in the order of the graph, both in one, or the first of a plain
    MLP. ``down``: the GEMM that sums over I. ``inner``: every node between that depends on a token, in graph
    order. They compute the same on a part of I, once ``literals``, the sizes of I that they state, have
    shrunk with it, and on more rows, stacked along dimension 0, once ``rows``, the sizes that they state of
    that dimension, have grown with it. ``segments``: the parts that an up's result is taken apart into, 2 for
    gate and up in one; each is cut by itself. ``names``: the paths in the model of the stored tensors.
    """

    path: str
    names: Mapping[Node, str]
    ups: tuple[Gemm, ...]
    down: Gemm
    inner: tuple[Node, ...]
    literals: tuple[Literal, ...] = ()
    rows: tuple[Literal, ...] = ()
    segments: int = 1
    role: str = "mlp"

    @property
    def input(self) -> Node:
        """x, as the first of ``ups`` reads it; the others read the same rows."""
        return self.ups[0].input

    @cached_property
    def cuts(self) -> tuple[StoredAxis, ...]:
        """What I lies on, GEMM by GEMM, first of ``ups`` and then of ``down``, by paths in the model.

        An up's bias lies along I too; that of ``down`` does not, and is added once after the sum.
        """
        produced = (_produced(up).in_segments(self.segments) for up in self.ups)
        return tuple(axis.with_paths(self.names) for axis in (*produced, self.down.k))

    @property
    def stored(self) -> tuple[TensorAxis, ...]:
        """The weights and all that lies along I with them."""
        return tuple(tensor for cut in self.cuts for tensor in cut.tensors)

    @property
    def readers(self) -> frozenset[Node]:
        """The GEMMs."""
        return frozenset(gemm.node for gemm in (*self.ups, self.down))


def _produced(up: Gemm) -> StoredAxis:
    found, bias = up.along(Axis.H), up.bias_along_output()
    return found if bias is None else found.with_tensors(bias.tensors, bias.constants)
