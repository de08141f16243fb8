"""Runs a sharded projection on a side stream, beside work that does not need its result.

A layer whose MLP reads the attention's own input (GPT-J, Phi, Cohere) can compute it during the exchange.

1. Scan: around each exchange, take what ``ShardOProj`` wrote for the projection (the *region*), and what
   follows up to the first product or attention that needs the result.
2. Decide: overlap iff a product or an attention in between is independent, nothing there writes in place
   (events order streams, not aliases) and nothing there communicates (two collectives at once can deadlock).
3. Rewrite: the region goes to the side stream, from an event before it to an event behind the independent
   work; cheap readers of the result in between (dropout, a reshape) move behind the second one.

It leaves sequential layers alone, and never reorders the independent work itself.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from oproj_pass.passes import ops
from oproj_pass.passes.effects import mutated_inputs
from oproj_pass.passes.fingerprint import is_collective
from oproj_pass.passes.metadata import inherit_origin
from oproj_pass.passes.process_groups import communicator
from oproj_pass.passes.provenance import is_tensor, module_path
from oproj_pass.passes.runner import PassRecord
from oproj_pass.passes.sites import NearMiss
from oproj_pass.passes.streams import Streams

functional = torch.ops._c10d_functional

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
class Region:
    """A sharded projection, the independent work that follows, and the cheap readers in between."""

    path: str
    nodes: tuple[Node, ...]
    beside: tuple[Node, ...]
    readers: tuple[Node, ...]


class OverlapExchange:
    """The pass; runs last. A projection that it leaves on the main stream is a near miss with the reason.

    ``streams``: the spelling of the compiler that will read the graph.
    """

    name = "overlap_exchange"

    def __init__(self, streams: Streams) -> None:
        self.streams = streams

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> PassRecord:
        """Rewrite ``gm``; ``example_inputs`` are left as they are."""
        start = time.perf_counter()
        judged = [(region, _refusal(region)) for region in _find_regions(gm.graph)]
        taken = [region for region, reason in judged if reason is None]
        changed = [node for number, region in enumerate(taken) for node in self._rewrite(region, number)]
        return PassRecord(
            name=self.name,
            matches=tuple(taken),
            near_misses=tuple(
                NearMiss(region.path, f"is not overlapped: {reason}") for region, reason in judged if reason
            ),
            changed=tuple(changed),
            seconds=time.perf_counter() - start,
        )

    def _rewrite(self, region: Region, number: int) -> list[Node]:
        graph, streams, event = region.nodes[0].graph, self.streams, f"{STREAM}.{number}"
        first, after, behind = region.nodes[0], region.nodes[-1].next, region.beside[-1].next
        existing = set(graph.nodes)
        with graph.inserting_before(first):
            ready = streams.record(graph, f"{event}.ready")
            streams.enter(graph, STREAM)
            streams.wait(graph, ready)
        with graph.inserting_before(after):
            done = streams.record(graph, f"{event}.done")
            streams.exit(graph)
        with graph.inserting_before(behind):
            streams.wait(graph, done)
            for tensor in _read_from_outside(region):
                streams.hold(graph, tensor)
        for node in region.readers:
            behind.prepend(node)
        created = [node for node in graph.nodes if node not in existing]
        for node in created:
            inherit_origin(node, region.nodes[-1])
        return created


def _find_regions(graph: Graph) -> Iterator[Region]:
    exchanges = ops.registered("_c10d_functional::all_to_all_single", "npu_define::all_to_all_single_npu")
    seen: set[Node] = set()
    for node in list(graph.nodes):
        if ops.operation(node) in exchanges and node not in seen:
            nodes = tuple(_written_for_one_projection(node))
            seen.update(nodes)
            if not module_path(node) or any(map(_is_reduction, nodes)):
                yield Region(module_path(node), nodes, *_what_follows(nodes))


def _written_for_one_projection(exchange: Node) -> list[Node]:
    """The exchange and its neighbours of the same module, which ``ShardOProj`` writes in one piece."""
    path, nodes = module_path(exchange), [exchange]
    if not path:
        return nodes
    while _is_computed(nodes[0].prev) and module_path(nodes[0].prev) == path:
        nodes.insert(0, nodes[0].prev)
    while _is_computed(nodes[-1].next) and module_path(nodes[-1].next) == path:
        nodes.append(nodes[-1].next)
    return nodes


def _is_reduction(node: Node) -> bool:
    """What ends a projection; an exchange without one is the model's own (MoE dispatch)."""
    return node.target is functional.reduce_scatter_tensor.default or communicator(node) is not None


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


def _refusal(region: Region) -> str | None:
    if not region.path:
        return "the graph does not say which module its exchange belongs to"
    if not region.beside:
        return "no product or attention before the first one that needs its result is independent of it"
    for node in (*region.nodes, *region.beside, *region.readers):
        if any(mutated_inputs(node)):
            return f"`{node.name}` writes in place at the same time"
    for node in region.beside:
        if is_collective(node):
            return f"`{node.name}` communicates at the same time, and two collectives at once can deadlock"
    return None


def _read_from_outside(region: Region) -> list[Node]:
    read = dict.fromkeys(source for node in region.nodes for source in node.all_input_nodes)
    return [node for node in read if node not in region.nodes and _is_computed(node) and is_tensor(node)]
