"""Sizes that a graph states as numbers, and that must shrink when the tensor they describe is cut."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.arguments import argument
from oproj_pass.passes.graph.provenance import value_of

VIEW = ops.targets("view", "reshape", "_unsafe_view", "expand")
UNFLATTEN = ops.targets("unflatten")
REPEAT = ops.targets("repeat_interleave")


@dataclass(frozen=True)
class Literal:
    """The arguments of ``node`` state the size of its output along ``dim``."""

    node: Node
    dim: int

    def shrink(self, size: int) -> None:
        """Divide that size by ``size``, where it is a number and not "whatever is left" (-1)."""
        if ops.operation(self.node) in REPEAT:
            self._shrink_repeats(size)
        elif ops.operation(self.node) in VIEW:
            self._shrink_sizes(1, self.dim, size)
        else:
            first = argument(self.node, 1, "dim")
            rank = value_of(self.node).dim() - len(argument(self.node, 2, "sizes")) + 1
            self._shrink_sizes(2, self.dim - first % rank, size)

    def _shrink_repeats(self, size: int) -> None:
        """``repeat_interleave(x, n, dim)`` of a single entry, which makes n of it."""
        if "repeats" in self.node.kwargs:
            self.node.update_kwarg("repeats", self.node.kwargs["repeats"] // size)  # type: ignore[operator]
        else:
            self.node.update_arg(1, self.node.args[1] // size)  # type: ignore[operator]

    def _shrink_sizes(self, position: int, index: int, size: int) -> None:
        """``view(x, a, b)``, ``view(x, (a, b))`` and ``reshape(x, shape=(a, b))``."""
        name = next((name for name in ("size", "shape", "sizes") if name in self.node.kwargs), None)
        if name is not None:
            self.node.update_kwarg(name, _divided(self.node.kwargs[name], index, size))
        elif isinstance(self.node.args[position], Sequence):
            self.node.update_arg(position, _divided(self.node.args[position], index, size))
        else:
            sizes = _divided(self.node.args[position:], index, size)
            self.node.args = (*self.node.args[:position], *sizes)


def _divided(sizes: Any, index: int, size: int) -> list[Any]:
    whole = sizes[index]
    part = whole // size if isinstance(whole, int) and whole > 0 else whole
    return [*sizes[:index], part, *sizes[index + 1 :]]
