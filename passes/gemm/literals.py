"""Sizes that a graph states as numbers, and that must change with the tensor that they describe.

A row of ``_STATED`` for each way in which a call states them.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.arguments import argument
from oproj_pass.passes.graph.provenance import value_of

VIEW = ops.targets("view", "reshape", "_unsafe_view", "expand")
UNFLATTEN = ops.targets("unflatten")
REPEAT = ops.targets("repeat_interleave")
EMPTY = ops.targets("empty", "zeros")
NEW = ops.targets("new_empty", "new_zeros")
PARTS = ops.targets("split", "split_with_sizes")
SLICE = ops.targets("slice", "narrow")
GETITEM = ops.targets("getitem")

_Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Literal:
    """The arguments of ``node`` state the size of its output along ``dim``, or where it is cut there."""

    node: Node
    dim: int

    def shrink(self, size: int) -> None:
        """Divide that size by ``size``, where it is a number and not "whatever is left" (-1)."""
        self._change(lambda whole: whole // size if isinstance(whole, int) and whole > 0 else whole)

    def grow(self, size: int) -> None:
        """Multiply that size by ``size``, unless it is "whatever is left"; a computed one in a new node."""
        self._change(lambda part: _times(self.node, part, size))

    def _change(self, change: _Change) -> None:
        state = next(state for family, state in _STATED if ops.operation(self.node) in family)
        state(self.node, self.dim, change)


def _times(node: Node, part: Any, size: int) -> Any:
    if not isinstance(part, Node):
        return part * size if part > 0 else part
    with node.graph.inserting_before(node):
        product = node.graph.call_function(operator.mul, (part, size))
    product.meta = {key: part.meta[key] * size for key in ("val", "example_value") if key in part.meta}
    return product


def _sizes_of_a_view(node: Node, dim: int, change: _Change) -> None:
    """``view(x, a, b)``, ``view(x, (a, b))`` and ``reshape(x, shape=(a, b))``."""
    _change_listed(node, 1, ("size", "shape"), dim, change)


def _sizes_of_a_factory(node: Node, dim: int, change: _Change) -> None:
    _change_listed(node, 0, ("size",), dim, change)


def _sizes_unflattened(node: Node, dim: int, change: _Change) -> None:
    first = argument(node, 1, "dim")
    rank = value_of(node).dim() - len(argument(node, 2, "sizes")) + 1
    _change_listed(node, 2, ("sizes",), dim - first % rank, change)


def _repeats(node: Node, dim: int, change: _Change) -> None:
    """``repeat_interleave(x, n, dim)`` of a single entry, which makes n of it."""
    _change_argument(node, 1, "repeats", change)


def _sizes_of_parts(node: Node, dim: int, change: _Change) -> None:
    name = next((name for name in node.kwargs if name.startswith("split")), "split_size")
    _change_argument(node, 1, name, lambda sizes: _mapped(sizes, change))


def _bounds(node: Node, dim: int, change: _Change) -> None:
    """``slice(x, dim, start, end)`` and ``narrow(x, dim, start, length)``."""
    for position, name in ((2, "start"), (3, "end" if "end" in node.kwargs else "length")):
        if argument(node, position, name) is not None:
            _change_argument(node, position, name, change)


def _bounds_of_an_index(node: Node, dim: int, change: _Change) -> None:
    """``x[..., start:stop]``: the last item cuts the last dimension."""
    items: Any = node.args[1]
    last = items[-1] if isinstance(items, tuple) else items
    start, stop = (None if bound is None else change(bound) for bound in (last.start, last.stop))
    cut = slice(start, stop, last.step)
    node.update_arg(1, (*items[:-1], cut) if isinstance(items, tuple) else cut)


def _change_argument(node: Node, position: int, name: str, change: _Change) -> None:
    if len(node.args) > position:
        node.update_arg(position, change(node.args[position]))
    else:
        node.update_kwarg(name, change(node.kwargs[name]))


def _change_listed(node: Node, position: int, names: Sequence[str], index: int, change: _Change) -> None:
    """One of several sizes, given as a list or one by one."""
    name = next((name for name in names if name in node.kwargs), names[0])
    if name in node.kwargs or isinstance(node.args[position], Sequence):
        _change_argument(node, position, name, lambda sizes: _changed_at(sizes, index, change))
    else:
        node.args = (*node.args[:position], *_changed_at(node.args[position:], index, change))


def _changed_at(sizes: Any, index: int, change: _Change) -> list[Any]:
    return [*sizes[:index], change(sizes[index]), *sizes[index + 1 :]]


def _mapped(sizes: Any, change: _Change) -> Any:
    return [*map(change, sizes)] if isinstance(sizes, Sequence) else change(sizes)


_STATED: tuple[tuple[frozenset[Any], Callable[[Node, int, _Change], None]], ...] = (
    (VIEW | NEW, _sizes_of_a_view),
    (UNFLATTEN, _sizes_unflattened),
    (REPEAT, _repeats),
    (EMPTY, _sizes_of_a_factory),
    (PARTS, _sizes_of_parts),
    (SLICE, _bounds),
    (GETITEM, _bounds_of_an_index),
)
