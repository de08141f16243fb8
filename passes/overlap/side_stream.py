"""Runs a sharded projection on a side stream, beside work that does not need its result.

A layer whose MLP reads the attention's own input (GPT-J, Phi, Cohere) can compute it during the exchange.

1. Scan: for each region that ``ShardOProj`` wrote, what follows it up to the first product or attention that
   needs its result.
2. Decide: overlap iff a product or an attention in between is independent, nothing there writes in place
   (events order streams, not aliases) and nothing there communicates (two collectives at once can deadlock).
3. Rewrite: the region goes to the side stream, from an event before it to an event behind the independent
   work; cheap readers of the result in between (dropout, a reshape) move behind the second one.

It leaves sequential layers alone, and never reorders the independent work itself.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule, Node

from oproj_pass.passes.contract import NearMiss, PassRecord
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.collectives import is_collective
from oproj_pass.passes.graph.effects import mutated_inputs
from oproj_pass.passes.graph.metadata import inherit_origin
from oproj_pass.passes.graph.provenance import is_tensor
from oproj_pass.passes.overlap.streams import Streams, put_on_stream
from oproj_pass.passes.strategies.region import ShardedRegion

STREAM = "oproj"

# Products besides ``ops.MATMUL``, where their library is loaded.
_COSTLY = (
    *ops.ENGINE_ATTENTION,
    "aten::_int_mm",
    "aten::_scaled_mm",
    "aten::_weight_int8pack_mm",
    "npu::npu_quant_matmul",
    "npu::npu_weight_quant_batchmatmul",
    "npu::npu_grouped_matmul",
)


@dataclass(frozen=True)
class Beside:
    """What can run beside a region: the independent work that follows, and cheap readers in between."""

    region: ShardedRegion
    work: tuple[Node, ...]
    readers: tuple[Node, ...]

    @property
    def path(self) -> str:
        """The region's module path."""
        return self.region.path


class OverlapExchange:
    """The pass; runs last. A projection that it leaves on the main stream is a near miss with the reason.

    ``regions``: what was sharded, filled by the time this pass runs. ``streams``: the spelling of the
    compiler that will read the graph.
    """

    name = "overlap_exchange"

    def __init__(self, regions: Sequence[ShardedRegion], streams: Streams) -> None:
        self.regions, self.streams = regions, streams

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> PassRecord:
        """Rewrite ``gm``; ``example_inputs`` are left as they are."""
        start = time.perf_counter()
        found = [Beside(region, *_what_follows(region.nodes)) for region in self.regions]
        judged = [(beside, _refusal(beside)) for beside in found]
        taken = [beside for beside, reason in judged if reason is None]
        changed = [node for number, beside in enumerate(taken) for node in self._rewrite(beside, number)]
        return PassRecord(
            name=self.name,
            matches=tuple(taken),
            near_misses=tuple(
                NearMiss(beside.path, f"is not overlapped: {reason}") for beside, reason in judged if reason
            ),
            changed=tuple(changed),
            seconds=time.perf_counter() - start,
        )

    def _rewrite(self, beside: Beside, number: int) -> list[Node]:
        nodes, streams, event = beside.region.nodes, self.streams, f"{STREAM}.{number}"
        graph, behind = nodes[0].graph, beside.work[-1].next
        existing = set(graph.nodes)
        done = put_on_stream(streams, STREAM, event, nodes[0], nodes[-1].next)
        with graph.inserting_before(behind):
            streams.wait(graph, done)
            for tensor in _read_from_outside(nodes):
                streams.hold(graph, tensor)
        for node in beside.readers:
            behind.prepend(node)
        created = [node for node in graph.nodes if node not in existing]
        for node in created:
            inherit_origin(node, nodes[-1])
        return created


def _is_computed(node: Node) -> bool:
    return node.op in ("call_function", "call_method")


def _what_follows(region: Sequence[Node]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The work up to the last costly independent node, and the region's readers in between."""
    dependent, window = set(region), []
    node = region[-1].next
    while node.op != "output":
        if not dependent.isdisjoint(node.all_input_nodes):
            if _is_costly(node):
                break
            dependent.add(node)
        window.append(node)
        node = node.next
    while window and (window[-1] in dependent or not _is_costly(window[-1])):
        window.pop()
    readers = tuple(node for node in window if node in dependent)
    return tuple(node for node in window if node not in dependent), readers


def _is_costly(node: Node) -> bool:
    return ops.operation(node) in ops.MATMUL | ops.ATTENTION | ops.registered(*_COSTLY) or is_collective(node)


def _refusal(beside: Beside) -> str | None:
    if beside.region.role != "oproj":
        return (
            f"it is an exchange of the role {beside.region.role!r}, whose result the next layer needs at once"
        )
    if not beside.work:
        return "no product or attention before the first one that needs its result is independent of it"
    for node in (*beside.region.nodes, *beside.work, *beside.readers):
        if any(mutated_inputs(node)):
            return f"`{node.name}` writes in place at the same time"
    for node in beside.work:
        if is_collective(node):
            return f"`{node.name}` communicates at the same time, and two collectives at once can deadlock"
    return None


def _read_from_outside(nodes: Sequence[Node]) -> list[Node]:
    read = dict.fromkeys(source for node in nodes for source in node.all_input_nodes)
    return [node for node in read if node not in nodes and _is_computed(node) and is_tensor(node)]
