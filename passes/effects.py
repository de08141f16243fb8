"""Which tensors a node writes in place, and which values are constant for every token.

Attention kernels of serving engines return nothing and fill an ``out`` buffer; a search that follows only
return values loses their result.
"""

import operator
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.fx import Node

from oproj_pass.passes import ops
from oproj_pass.passes.provenance import rank_of, value_of

_WRITES_FIRST = ops.INPLACE_OPERATORS | {operator.setitem}


def mutated_inputs(node: Node) -> Iterator[Node]:
    """The node's inputs that it writes in place."""
    if node.target in _WRITES_FIRST or _is_inplace_method(node):
        yield from _nodes(node.args[:1])
    elif isinstance(node.target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        yield from _written_arguments(node, _schema(node.target))
    elif "out" in node.kwargs:
        yield from _nodes([node.kwargs["out"]])


def _is_inplace_method(node: Node) -> bool:
    return node.op == "call_method" and str(node.target).endswith("_") and not str(node.target).endswith("__")


def _schema(target: Any) -> torch.FunctionSchema:
    if isinstance(target, torch._ops.OpOverloadPacket):
        target = getattr(target, target.overloads()[0])  # type: ignore[no-untyped-call]
    return target._schema  # type: ignore[no-any-return]


def _written_arguments(node: Node, schema: torch.FunctionSchema) -> Iterator[Node]:
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
            yield from _nodes(value if isinstance(value, list | tuple) else [value])


def _nodes(values: Any) -> Iterator[Node]:
    return (value for value in values if isinstance(value, Node))


class Dependence:
    """Tells activations from constants (parameters, sizes, fresh buffers); fed in graph order.

    A fresh buffer, and every view of it, turns into an activation when one is written into it.
    ``parameters`` are the placeholders that hold stored weights, None where the graph keeps no record.
    """

    def __init__(self, parameters: Iterable[Node] | None) -> None:
        self.anonymous = parameters is None
        self._parameters = frozenset(parameters or ())
        self._constant: set[Node] = set()
        self._base: dict[Node, Node] = {}
        self._filled: set[Node] = set()

    def add(self, node: Node) -> None:
        """Record the node, after every node before it."""
        self._base[node] = self._find_base(node)
        if self._is_constant(node):
            self._constant.add(node)

    def write(self, buffer: Node) -> None:
        """Record that an activation is written into ``buffer``."""
        self._filled.add(self._base[buffer])

    def base(self, node: Node) -> Node:
        """The node whose storage ``node`` views, itself if it is no view."""
        return self._base[node]

    def activations(self, node: Node) -> list[Node]:
        """The node's inputs that depend on a token, without the buffer that an ``out`` argument names."""
        return [x for x in node.all_input_nodes if self.is_activation(x) and x is not node.kwargs.get("out")]

    def is_activation(self, node: Node) -> bool:
        """Whether the node's value depends on a token."""
        return node not in self._constant or self._base[node] in self._filled

    def _find_base(self, node: Node) -> Node:
        if ops.operation(node) in ops.ALIASING and node.args and isinstance(node.args[0], Node):
            return self._base[node.args[0]]
        return node

    def _is_constant(self, node: Node) -> bool:
        if isinstance(value_of(node), torch.SymInt | int | float | bool):
            return True
        if node.op == "placeholder":  # a vector is a bias, a norm's weight or a list of positions
            return rank_of(node) in (0, 1) if self.anonymous else node in self._parameters
        return ops.operation(node) in ops.FACTORY or not any(map(self.is_activation, node.all_input_nodes))
