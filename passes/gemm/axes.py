"""Where the axes of a GEMM lie on its stored tensors, and what a rank keeps of a tensor that is cut there.

Recognising a GEMM states its axes and decides no cut: which axis is cut, and over how many ranks, is a
strategy's answer.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from torch import Tensor
from torch.fx import Node

from oproj_pass.passes.gemm.literals import Literal
from oproj_pass.passes.gemm.split import Split
from oproj_pass.passes.graph.provenance import nbytes


class Axis(Enum):
    """An axis of ``y [T, H] = x [T, K] @ weight``: the one that is summed, or the one that is produced."""

    K = "input features"
    H = "output features"


@dataclass(frozen=True)
class TensorAxis:
    """An axis of a GEMM on one stored tensor.

    ``node``: the tensor's placeholder. ``dim``: the dimension of the *stored* tensor that the axis lies on.
    ``unit``: how many consecutive features one index along it stands for: 1 for a plain weight, 8 for eight
    int4 in one int32, g for the row of scales of a group of g. ``path``: the tensor's path in the model.
    ``segments`` and ``padded_by``: how the dimension is cut, see ``Split``.
    """

    node: Node
    dim: int
    unit: int = 1
    path: str = ""
    segments: int = 1
    padded_by: int | None = None

    @property
    def split(self) -> Split:
        """How the stored tensor falls into parts."""
        return Split(self.dim, self.segments, self.padded_by)

    @property
    def nbytes(self) -> int:
        """Bytes of the full tensor."""
        return nbytes(self.node)


@dataclass(frozen=True)
class StoredAxis:
    """All that one axis of a GEMM lies on: cutting it is cutting each of ``tensors`` into equal parts.

    ``extent``: features along the axis. ``tensors``: the weight first, then its scales, zero points and
    indices; a stored tensor that is not among them is the same on every rank. ``constants``: the nodes
    between them and the GEMM, in graph order. ``literals``: sizes among those that shrink with the axis.
    ``kept_together``: features that stay together on the way, as a view in groups of them makes them.
    """

    axis: Axis
    extent: int
    tensors: tuple[TensorAxis, ...]
    constants: tuple[Node, ...] = ()
    literals: tuple[Literal, ...] = ()
    kept_together: int = 1

    @property
    def unit(self) -> int:
        """Features that may not be parted: 1, or what a group, a block or a packed word spans."""
        return math.lcm(self.kept_together, *(tensor.unit for tensor in self.tensors))

    @property
    def segments(self) -> int:
        """Equal stretches of the axis that are cut each by itself."""
        return self.tensors[0].segments

    @property
    def is_padded(self) -> bool:
        """Whether the axis is filled up until it falls into equal parts."""
        return self.tensors[0].padded_by is not None

    @property
    def parts(self) -> int:
        """The most ranks that the axis can be split over unpadded; every divisor of it fits too."""
        units = self.segments * self.unit
        return self.extent // units if self.extent % units == 0 else 1

    def fits(self, size: int) -> bool:
        """Whether the axis can be split over ``size`` ranks; sizes that the graph states are never padded."""
        return self.parts % size == 0 or (self.is_padded and not self.literals)

    @property
    def nbytes(self) -> int:
        """Bytes of everything that is cut with the axis."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def with_tensors(self, tensors: Iterable[TensorAxis], constants: Iterable[Node] = ()) -> "StoredAxis":
        """The axis with further tensors that it lies on, and the nodes behind those."""
        return replace(self, tensors=(*self.tensors, *tensors), constants=(*self.constants, *constants))

    def with_paths(self, names: Mapping[Node, str]) -> "StoredAxis":
        """The axis with its tensors' paths in the model, a placeholder's name where it has none."""
        tensors = (replace(on, path=names.get(on.node, on.node.name)) for on in self.tensors)
        return replace(self, tensors=tuple(tensors))

    def in_segments(self, segments: int) -> "StoredAxis":
        """The axis cut in ``segments`` equal stretches, each by itself."""
        return replace(self, tensors=tuple(replace(tensor, segments=segments) for tensor in self.tensors))

    def padded(self, unit: int | None = None) -> "StoredAxis":
        """The axis filled up with zeros at its end until it falls into equal parts.

        In whole units: its own, or those of an axis that it goes with.
        """
        unit = unit or self.unit
        return replace(
            self, tensors=tuple(replace(tensor, padded_by=unit // tensor.unit) for tensor in self.tensors)
        )

    def part_length(self, size: int) -> int:
        """Features of a part, of ``size``, padding among them."""
        weight = self.tensors[0]
        return weight.split.part_length(self.extent // weight.unit, size) * weight.unit


def shard_of(cut: TensorAxis, full: Tensor, rank: int, size: int) -> Tensor:
    """Rank ``rank``'s part, of ``size``, of a full stored tensor: a dense copy, in its order of memory."""
    return cut.split.part_of(full, rank, size).clone()
