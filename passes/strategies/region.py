"""What a strategy wrote for one site, phase by phase, for every pass that comes later to read."""

from dataclasses import dataclass, field

from torch.fx import Node

from oproj_pass.passes.gemm.axes import Axis, StoredAxis, TensorAxis
from oproj_pass.passes.graph.collectives import is_collective
from oproj_pass.passes.strategies.exchange import Exchange


@dataclass(frozen=True)
class CutTensor:
    """A stored tensor of which a rank holds a part, and a region that reads it."""

    region: "ShardedRegion"
    along: tuple[tuple[Axis, TensorAxis], ...]


@dataclass(frozen=True)
class ShardedRegion:
    """A sharded site in the graph: consecutive nodes, in five phases that may be empty.

    ``pack`` lays rows out for the wire, ``exchange`` brings them to the ranks that need them, ``partial`` is
    the product with a rank's part of the weight, ``reduce`` makes whole results of the partial ones, and
    ``finish`` adds the bias and restores type and shape. ``cuts``: the axes that were cut, over the ranks of
    ``config``. Where that has several chunks, their phases are interleaved.
    """

    path: str
    strategy: str
    config: Exchange
    cuts: tuple[StoredAxis, ...]
    pack: tuple[Node, ...] = ()
    exchange: tuple[Node, ...] = ()
    partial: tuple[Node, ...] = ()
    reduce: tuple[Node, ...] = ()
    finish: tuple[Node, ...] = ()
    role: str = "oproj"

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All of it, in graph order."""
        return (*self.pack, *self.exchange, *self.partial, *self.reduce, *self.finish)

    @property
    def tensors(self) -> tuple[TensorAxis, ...]:
        """Where each stored tensor of which a rank now holds a part is cut."""
        return tuple(tensor for cut in self.cuts for tensor in cut.tensors)

    @property
    def manner(self) -> str:
        """How its rows are exchanged, in words: ``row, exchange, 4 chunks``."""
        shape = tuple(peers.size for _, peers in self.config.mesh)
        words = [f"{self.strategy} {shape}" if shape else self.strategy]
        if any(cut.axis is Axis.K for cut in self.cuts):
            words.append(self.config.reduce)
        if self.config.chunks > 1:
            words.append(f"{self.config.chunks} chunks")
        return ", ".join(words)

    @property
    def by_node(self) -> dict[Node, CutTensor]:
        """The same by placeholder, of which a grid cuts some along both axes."""
        along: dict[Node, list[tuple[Axis, TensorAxis]]] = {}
        for cut in self.cuts:
            for tensor in cut.tensors:
                along.setdefault(tensor.node, []).append((cut.axis, tensor))
        return {node: CutTensor(self, tuple(axes)) for node, axes in along.items()}


@dataclass
class PhaseWriter:
    """Groups the nodes that a strategy inserts before ``site`` into phases."""

    site: Node
    phases: dict[str, tuple[Node, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._last = self.site.prev

    def end(self, phase: str) -> None:
        """Count what was inserted since the last phase to ``phase``."""
        self.phases[phase] = tuple(self._since_last())
        self._last = self.site.prev

    def end_exchange(self) -> None:
        """Count what was inserted since to ``pack``, and from its first collective on to ``exchange``."""
        nodes = self._since_last()
        first = next((index for index, node in enumerate(nodes) if is_collective(node)), len(nodes))
        self.phases["pack"], self.phases["exchange"] = tuple(nodes[:first]), tuple(nodes[first:])
        self._last = self.site.prev

    def _since_last(self) -> list[Node]:
        nodes, node = [], self._last.next
        while node is not self.site:
            nodes.append(node)
            node = node.next
        return nodes
