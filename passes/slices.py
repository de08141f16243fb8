"""What a rank keeps of a stored tensor: an equal part along the dimension that the summed features lie on."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor
from torch.fx import Node

from oproj_pass.passes.provenance import nbytes


@dataclass(frozen=True)
class WeightSlice:
    """A stored tensor that is cut along K, the summed features, into one equal part a rank.

    ``node``: its placeholder. ``dim``: the dimension of the *stored* tensor that K lies on. ``unit``: how
    many consecutive features one index along it stands for: 1 for a plain weight, 8 for eight int4 in one
    int32, g for the row of scales of a group of g. ``path``: the parameter's or buffer's path in the model.
    """

    node: Node
    dim: int
    unit: int = 1
    path: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the full tensor."""
        return nbytes(self.node)


def shard_of(weight_slice: WeightSlice, full: Tensor, rank: int, size: int) -> Tensor:
    """Rank ``rank``'s part, of ``size``, of a full stored tensor: a dense copy, in its order of memory."""
    return part_of(full, weight_slice.dim, rank, size).clone()


def part_of(full: Tensor, dim: int, rank: int, size: int) -> Tensor:
    """Rank ``rank``'s part, of ``size`` equal ones, of a tensor along ``dim``: a view."""
    part = full.shape[dim] // size
    return full.detach().narrow(dim, rank * part, part)


def split_unit(slices: Iterable[WeightSlice]) -> int:
    """Features that may not be parted: K is split into multiples of it."""
    return math.lcm(*(weight_slice.unit for weight_slice in slices))
