"""Labels that travel with values through a graph, and into the storage that those values are written into."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from torch.fx import Node

_Label = TypeVar("_Label")


class Labels(Generic[_Label]):
    """A set of labels for each node. ``base`` gives the node whose storage another one views."""

    def __init__(self, base: Callable[[Node], Node]) -> None:
        self._base = base
        self._own: dict[Node, frozenset[_Label]] = defaultdict(frozenset)
        self._written: dict[Node, frozenset[_Label]] = defaultdict(frozenset)

    def at(self, node: Node) -> frozenset[_Label]:
        """The labels of a node's value, those among them that were written into its storage in place."""
        return self._own[node] | self._written[self._base(node)]

    def of_any(self, nodes: Iterable[Node]) -> frozenset[_Label]:
        """The labels of all the nodes together."""
        return frozenset().union(*map(self.at, nodes))

    def of_all(self, nodes: Iterable[Node]) -> frozenset[_Label]:
        """The same, but nothing as soon as one of the nodes has no label."""
        labels = [self.at(node) for node in nodes]
        return frozenset().union(*labels) if all(labels) else frozenset()

    def put(self, node: Node, labels: Iterable[_Label]) -> None:
        """Give the node these labels, and no others."""
        self._own[node] = frozenset(labels)

    def write(self, buffer: Node, sources: Iterable[Node]) -> None:
        """Add the labels of what was written in place into ``buffer``."""
        self._written[self._base(buffer)] |= self.of_any(sources)
