"""One step of following an axis from a GEMM's operand down to what is stored: where it lies on one node."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from oproj_pass.passes.gemm.axes import Axis
from oproj_pass.passes.gemm.literals import Literal
from oproj_pass.passes.graph.provenance import value_of


class CannotFollow(Exception):
    """An axis cannot be followed through an operation; the message completes "has a weight that ..."."""


@dataclass(frozen=True)
class Step:
    """``axis`` lies on dimension ``dim`` of ``node``; an index along it stands for ``unit`` features."""

    node: Node
    dim: int
    unit: Fraction
    axis: Axis = Axis.K

    @property
    def shape(self) -> torch.Size:
        """The node's shape; refused where it is unknown."""
        value = value_of(self.node)
        if not isinstance(value, Tensor):
            raise CannotFollow(f"is computed by `{self.node.name}`, of unknown shape")
        return value.shape

    def to(self, node: Any, dim: int, unit: Fraction | None = None) -> "Step":
        """The step from this output to an input."""
        return Step(node, dim, self.unit if unit is None else unit, self.axis)


@dataclass(frozen=True)
class Inputs:
    """Where the walk goes on, and the sizes that the operation states."""

    steps: tuple[Step, ...] = ()
    literals: tuple[Literal, ...] = ()


def only_input(step: Step) -> Inputs:
    """The axis lies on the first argument as on the result."""
    return Inputs((step.to(step.node.args[0], step.dim),))


def rank(node: Any) -> int:
    """Dimensions of a node's tensor; refused where they are unknown."""
    value = value_of(node)
    if not isinstance(value, Tensor):
        raise CannotFollow(f"is computed by `{node.name}`, of unknown shape")
    return value.dim()
