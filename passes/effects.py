"""Which tensors a node writes in place, and which base each view stands on.

Attention kernels of serving engines return nothing and fill an ``out`` buffer; a search that follows only
return values loses their result.
"""

import operator
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from oproj_pass.passes import ops


def mutated_inputs(node: Node) -> Iterator[Node]:
    """The node's inputs that it writes in place."""
    if node.target is operator.setitem or _is_inplace_method(node):
        yield from _nodes(node.args[:1])
    elif isinstance(node.target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        yield from _written_arguments(node, _schema(node.target))
    elif "out" in node.kwargs:
        yield from _nodes([node.kwargs["out"]])


def _is_inplace_method(node: Node) -> bool:
    return node.op == "call_method" and str(node.target).endswith("_") and not str(node.target).endswith("__")


def _schema(target: Any) -> torch.FunctionSchema:
    if isinstance(target, torch._ops.OpOverloadPacket):
        target = getattr(target, target.overloads()[0])
    return target._schema  # type: ignore[no-any-return]


def _written_arguments(node: Node, schema: torch.FunctionSchema) -> Iterator[Node]:
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
            yield from _nodes(value if isinstance(value, list | tuple) else [value])


def _nodes(values: Any) -> Iterator[Node]:
    return (value for value in values if isinstance(value, Node))


class Aliases:
    """Groups the nodes of a graph by the tensor they are views of; fed in graph order."""

    def __init__(self) -> None:
        self._base: dict[Node, Node] = {}
        self._members: dict[Node, list[Node]] = defaultdict(list)

    def add(self, node: Node) -> None:
        """Record ``node`` as a view of its first input, or as a base of its own."""
        base = node
        if ops.operation(node) in ops.ALIASING and node.args and isinstance(node.args[0], Node):
            base = self._base.get(node.args[0], node.args[0])
        self._base[node] = base
        self._members[base].append(node)

    def of(self, node: Node) -> list[Node]:
        """Every recorded node that shares storage with ``node``, itself included."""
        return self._members[self._base.get(node, node)] or [node]
