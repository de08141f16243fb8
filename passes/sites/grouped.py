"""The site of a projection in two steps: a matrix for each group of heads, and the GEMM that joins them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm

from torch.fx import Node

from oproj_pass.passes.gemm.axes import StoredAxis, TensorAxis
from oproj_pass.passes.gemm.gemm import Gemm
from oproj_pass.passes.gemm.grouped import GroupedProduct
from oproj_pass.passes.gemm.literals import Literal
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.sites.projection import Projection
from oproj_pass.passes.sites.two_steps import TwoSteps


@dataclass(frozen=True)
class Grouped(TwoSteps):
    """``y [.., H] = inner(x [.., G, d] @ first [G, d, r]) [.., G x r] @ down``: ``wo_a`` and ``wo_b``.

    ``first``: the product of each group. ``joined``: where its result lies as rows of I = G x r features,
    group by group, the rows in the order of its input's. ``down``: the GEMM that sums over I. ``inner``,
    ``literals`` and ``rows``: what lies between, as of an ``Mlp``; nothing else reads it. ``names``: the
    paths in the model of the stored tensors.
    """

    path: str
    names: Mapping[Node, str]
    first: GroupedProduct
    joined: Node
    down: Gemm
    inner: tuple[Node, ...] = ()
    literals: tuple[Literal, ...] = ()
    rows: tuple[Literal, ...] = ()
    role: str = "oproj"

    @property
    def last(self) -> Projection:
        """The GEMM alone, for strategies that leave the groups' matrices whole."""
        return Projection(self.path, self.down, self.names, self.role)

    @property
    def input(self) -> Node:
        """The rows of I features, as many as are exchanged; what is exchanged is ``first``'s input."""
        return self.joined

    @cached_property
    def cuts(self) -> tuple[StoredAxis, ...]:
        """I on the groups' matrices and on the GEMM's weight, whole groups together on both."""
        produced, summed = self.first.along_output(), self.down.k
        together = lcm(produced.unit, summed.unit)
        axes = (replace(axis, kept_together=together) for axis in (produced, summed))
        return tuple(axis.with_paths(self.names) for axis in axes)

    @property
    def stored(self) -> tuple[TensorAxis, ...]:
        """The weights and all that lies along I with them, the GEMM's first."""
        produced, summed = self.cuts
        return (*summed.tensors, *produced.tensors)

    @property
    def readers(self) -> frozenset[Node]:
        """Both products."""
        return frozenset((self.first.node, self.down.node))

    @property
    def in_features(self) -> int:
        """Features that a row brings to the groups."""
        return self.first.input_features

    @property
    def out_features(self) -> int:
        """H."""
        return value_of(self.down.node).shape[-1]  # type: ignore[no-any-return]
