"""What is known of the nodes between an MLP's GEMMs: how I lies on each of them."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.fx import Node

from oproj_pass.passes.gemm.gemm import Gemm
from oproj_pass.passes.gemm.literals import Literal
from oproj_pass.passes.graph.dependence import Dependence
from oproj_pass.passes.graph.provenance import value_of


class NotElementwise(Exception):
    """What lies between the GEMMs mixes intermediate features; the message goes on from the MLP's path."""


@dataclass(frozen=True)
class Held:
    """``parts`` times I on the last dimension; ``stacked``: [.., parts, I]; ``paired``: [.., I, parts].

    ``group``: [.., I / group, group]. ``parts`` 0 is no intermediate, but a scale: of each row, or, with
    ``group``, of each so many features, [.., I / group] or [.., I / group, 1].
    """

    parts: int
    stacked: bool = False
    paired: bool = False
    group: int | None = None


Holds = Held | tuple[Held, ...]


@dataclass
class Reading:
    """What is known so far on the way from the ups to ``down``.

    ``segments`` and ``interleaved``: into how many parts something was taken apart, which lay side by side or
    feature by feature.
    """

    down: Gemm
    dependence: Dependence
    held: dict[Node, Holds] = field(default_factory=dict)
    literals: list[Literal] = field(default_factory=list)
    rows: list[Literal] = field(default_factory=list)
    segments: set[int] = field(default_factory=set)
    interleaved: set[int] = field(default_factory=set)

    @property
    def size(self) -> int:
        """I."""
        return self.down.k.extent

    def hold_result_of(self, up: Node) -> None:
        """Note the result of one of the first products."""
        features = shape_of(up)[-1]
        if features % self.size:
            raise NotElementwise(f"makes {self.size} intermediate features of {features}")
        self.held[up] = Held(features // self.size)

    def of(self, node: Node) -> Held:
        """What a node holds, if it is one tensor and no scale."""
        found = self.held.get(node)
        if not isinstance(found, Held):
            raise NotElementwise(f"has `{node.name}` between its GEMMs, which makes several tensors")
        return found


def shape_of(node: Any) -> Any:
    """The shape of a tensor with dimensions; refused where there is none."""
    value = value_of(node) if isinstance(node, Node) else None
    if not isinstance(value, Tensor) or not value.dim():
        raise NotElementwise(f"has `{node}` between its GEMMs, of unknown shape")
    return value.shape


def is_last(source: Any, dim: int) -> bool:
    """Whether a dimension of a node is its last."""
    return dim % len(shape_of(source)) == len(shape_of(source)) - 1


def mixed(node: Node) -> NotElementwise:
    """The refusal of a node that computes with several features of a row."""
    return NotElementwise(f"mixes intermediate features in `{node.name}`")


def parted(node: Node) -> NotElementwise:
    """The refusal of a node that does not leave I in whole parts."""
    return NotElementwise(f"takes its intermediate features apart in `{node.name}`")
