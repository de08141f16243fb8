"""Tells which values of a graph depend on a token, and which are constant for every one."""

from collections.abc import Iterable

import torch
from torch.fx import Node

from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.effects import aliased_input
from oproj_pass.passes.graph.provenance import rank_of, value_of

_NUMBERS = (torch.SymInt, int, float)


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
        source = aliased_input(node)
        self._base[node] = node if source is None else self._base[source]
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
        out = node.kwargs.get("out")
        return [x for x in node.all_input_nodes if self.is_activation(x) and x is not out]

    def is_activation(self, node: Node) -> bool:
        """Whether the node's value depends on a token."""
        return node not in self._constant or self._base[node] in self._filled

    def _is_constant(self, node: Node) -> bool:
        if isinstance(value_of(node), _NUMBERS):
            return True
        if node.op == "placeholder":  # a vector is a bias, a norm's weight or a list of positions
            return rank_of(node) in (0, 1) if self.anonymous else node in self._parameters
        return self._are_constant(node.all_input_nodes) or ops.operation(node) in ops.FACTORY

    def _are_constant(self, nodes: list[Node]) -> bool:
        return self._constant.issuperset(nodes) and not (self._filled and any(map(self.is_activation, nodes)))
