"""Labels that travel with values through a graph, and into the storage that those values are written into."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from torch.fx import Node

_Label = TypeVar("_Label")
_NONE: frozenset[Any] = frozenset()


class Labels(Generic[_Label]):
    """A set of labels for each node. ``base`` gives the node whose storage another one views."""

    def __init__(self, base: Callable[[Node], Node]) -> None:
        self._base = base
        self._own: dict[Node, frozenset[_Label]] = {}  # of the few nodes that have any
        self._written: dict[Node, frozenset[_Label]] = {}

    def may_reach(self, nodes: Iterable[Node]) -> bool:
        """False if none of the nodes has a label, which is soon told while nothing was written in place."""
        return bool(self._written) or not self._own.keys().isdisjoint(nodes)

    def at(self, node: Node) -> frozenset[_Label]:
        """The labels of a node's value, those among them that were written into its storage in place."""
        own = self._own.get(node, _NONE)
        return own | self._written.get(self._base(node), _NONE) if self._written else own

    def of_any(self, nodes: Iterable[Node]) -> frozenset[_Label]:
        """The labels of all the nodes together."""
        return _NONE.union(*map(self.at, nodes))

    def of_all(self, nodes: Iterable[Node]) -> frozenset[_Label]:
        """The same, but nothing as soon as one of the nodes has no label."""
        labels = [self.at(node) for node in nodes]
        return frozenset().union(*labels) if all(labels) else _NONE

    def put(self, node: Node, labels: Iterable[_Label]) -> None:
        """Give the node these labels, and no others."""
        own = frozenset(labels)
        if own or node in self._own:
            self._own[node] = own

    def write(self, buffer: Node, sources: Iterable[Node]) -> None:
        """Add the labels of what was written in place into ``buffer``."""
        if labels := self.of_any(sources):
            base = self._base(buffer)
            self._written[base] = self._written.get(base, _NONE) | labels
