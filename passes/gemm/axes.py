"""Where the axes of a GEMM lie on its stored tensors, and what a rank keeps of a tensor that is cut there.

Recognising a GEMM states its axes and decides no cut: which axis is cut, and over how many ranks, is a
strategy's answer.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from torch import Tensor
from torch.fx import Node

from oproj_pass.passes.gemm.literals import Literal
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
    """

    node: Node
    dim: int
    unit: int = 1
    path: str = ""

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
    def parts(self) -> int:
        """The most ranks that the axis can be split over; every divisor of it fits too."""
        return self.extent // self.unit if self.extent % self.unit == 0 else 1

    @property
    def nbytes(self) -> int:
        """Bytes of everything that is cut with the axis."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def with_tensors(self, tensors: Iterable[TensorAxis], constants: Iterable[Node] = ()) -> "StoredAxis":
        """The axis with further tensors that it lies on, and the nodes behind those."""
        return replace(self, tensors=(*self.tensors, *tensors), constants=(*self.constants, *constants))


def shard_of(cut: TensorAxis, full: Tensor, rank: int, size: int) -> Tensor:
    """Rank ``rank``'s part, of ``size``, of a full stored tensor: a dense copy, in its order of memory."""
    return part_of(full, cut.dim, rank, size).clone()


def part_of(full: Tensor, dim: int, rank: int, size: int) -> Tensor:
    """Rank ``rank``'s part, of ``size`` equal ones, of a tensor along ``dim``: a view."""
    part = full.shape[dim] // size
    return full.detach().narrow(dim, rank * part, part)
