"""Where the rows of a prefill lie on a value, and what following them through one operation says."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.graph.symbols import statically_known_true

Size = int | torch.SymInt
Place = tuple[Any, ...]
"""Where an argument stands in a call: ``("args", 0, 1)`` is the second entry of its first argument."""


class CannotSplit(Exception):
    """Rows cannot be followed through an operation; the message completes "is not split: ..."."""


@dataclass(frozen=True)
class Rows:
    """Dimension ``dim`` of a value counts rows; ``outer`` batch entries are merged in, rows innermost."""

    dim: int
    outer: Size = 1

    @property
    def is_plain(self) -> bool:
        """Whether the dimension counts rows alone."""
        return statically_known_true(self.outer == 1)


@dataclass(frozen=True)
class Followed:
    """What an operation makes of local rows.

    ``rows``: where they lie on its result, None if the result is whole. ``splits``: whole inputs of which it
    needs this rank's rows, each along a dimension. ``gathers``: local inputs that it needs whole. ``sizes``:
    sizes that it states and that count rows, with the batch entries merged into each. ``is_causal``: masks by
    index, so that it needs a mask by position. ``is_end``: picks rows, which the last restore has to precede.
    """

    rows: Rows | None
    splits: tuple[tuple[Node, int], ...] = ()
    gathers: tuple[Place, ...] = ()
    sizes: tuple[tuple[Place, Size], ...] = ()
    is_causal: bool = False
    is_end: bool = False


@dataclass(frozen=True)
class Call:
    """A call that reads local values. ``local``: where rows lie on them; ``shapes``: the same of what is the
    shape of one, as one value; ``total``: rows of a sequence."""

    node: Node
    local: Mapping[Node, Rows]
    shapes: Mapping[Node, Rows]
    total: Size

    @property
    def shape(self) -> torch.Size:
        """Shape of the result, of its first tensor where it has several."""
        value = value_of(self.node)
        tensors = value if isinstance(value, list | tuple) else [value]
        return next(item.shape for item in tensors if isinstance(item, Tensor))

    def rows(self, value: Any) -> Rows | None:
        """Where rows lie on an argument; None if it is whole or no value of the graph."""
        return self.local.get(value) if isinstance(value, Node) else None

    def rows_of_shape(self, value: Any) -> Rows | None:
        """Where rows lie on the local value whose whole shape an argument is; None if it is none."""
        return self.shapes.get(value) if isinstance(value, Node) else None

    def first(self, *, alone: bool = True) -> tuple[Node, Rows]:
        """The first argument, which has to be local; ``alone``: and no other one."""
        source: Any = self.node.args[0] if self.node.args else self.node.kwargs.get("input")
        rows = self.rows(source)
        others = [node for node in self.node.all_input_nodes if node is not source and self.rows(node)]
        if rows is None or (alone and others):
            raise CannotSplit(f"`{self.node.name}` reads rows by another argument than its first")
        return source, rows

    def is_total(self, size: Size, outer: Size = 1) -> bool:
        """Whether a size counts all rows of the batch entries."""
        return statically_known_true(size == outer * self.total)


def shape_of(node: Any) -> torch.Size | None:
    """Shape of a node's tensor, None for what is no tensor."""
    value = value_of(node) if isinstance(node, Node) else None
    return value.shape if isinstance(value, Tensor) else None


def argument_place(node: Node, position: int, name: str) -> Place | None:
    """Where an argument is given, by position or by name; None where it is left out."""
    if len(node.args) > position:
        return ("args", position)
    return ("kwargs", name) if name in node.kwargs else None


def at_place(node: Node, place: Place) -> Any:
    """The argument at a place; ``torch.Size([..])``, as Dynamo writes it, counts as the list of its sizes."""
    found: Any = getattr(node, place[0])
    for key in place[1:]:
        found = listed(found)[key]
    return found


def replace_at(node: Node, place: Place, value: Any) -> None:
    """Put another argument at a place."""
    setattr(node, place[0], _with(getattr(node, place[0]), place[1:], value))


def listed(value: Any) -> Any:
    """The list of sizes behind ``torch.Size([..])``; any other argument as it is."""
    return value.args[0] if isinstance(value, Node) and value.target is torch.Size else value


def _with(container: Any, keys: Place, value: Any) -> Any:
    if not keys:
        return value
    first, rest = keys[0], keys[1:]
    if isinstance(container, Mapping):
        return {**container, first: _with(container[first], rest, value)}
    entries = enumerate(listed(container))
    items = [_with(item, rest, value) if index == first else item for index, item in entries]
    return tuple(items) if isinstance(container, tuple) else items
