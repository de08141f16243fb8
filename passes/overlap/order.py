"""Refuses a graph whose events do not order its streams: such a step could hang, or read what is not there.

Works on the graph as the compiler will get it, whatever passes wrote it.

1. Follow the graph in order, a vector clock for each stream: how far it knows every other one to be.
2. Refuse a wait that comes before the record of its event. Where each of the two has to come before the other
   through further events, the message names the circle.
3. Refuse a tensor that is read on another stream before an event says that it is made.
4. Refuse a collective on a side stream that may run at the same time as one of another group.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import networkx as nx
from torch.fx import Graph, GraphModule, Node

from oproj_pass.errors import StreamOrderError
from oproj_pass.passes.contract import PassRecord
from oproj_pass.passes.graph.collectives import communicator, ends_collective, is_collective, listed_ranks
from oproj_pass.passes.graph.provenance import is_tensor, module_path
from oproj_pass.passes.overlap.marks import Does, Mark
from oproj_pass.passes.overlap.streams import Streams

_REMEDY = "This is a fault of the passes that ran: set `chunks` = 1 and `overlap` = false, and report it."
_Stream = Any
_Clock = dict[_Stream, int]


class RequireStreamOrder:
    """The pass; runs last, and changes nothing. Raises ``StreamOrderError``."""

    name = "require_stream_order"

    def __init__(self, streams: Streams) -> None:
        self.streams = streams

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> PassRecord:
        """Check ``gm``; ``example_inputs`` are not looked at."""
        start = time.perf_counter()
        require_stream_order(gm.graph, self.streams)
        return PassRecord(self.name, seconds=time.perf_counter() - start)


@dataclass
class _Reading:
    """How far the graph has been followed. ``None`` is the main stream."""

    stream_of: Mapping[Node, _Stream]
    position: dict[Node, int] = field(default_factory=dict)
    clocks: dict[_Stream, _Clock] = field(default_factory=dict)
    recorded: dict[Any, _Clock] = field(default_factory=dict)
    in_flight: list[tuple[Node, Node]] = field(default_factory=list)

    def knows(self, stream: _Stream, node: Node) -> bool:
        """Whether what follows on ``stream`` comes after ``node``."""
        found = self.position.get(node)
        return found is not None and self.clocks[stream].get(self.stream_of[node], -1) >= found


def require_stream_order(graph: Graph, streams: Streams) -> None:
    """Raise ``StreamOrderError``, which names the layer and the node, unless events order the streams."""
    marks = {node: mark for node in graph.nodes if (mark := streams.mark(node)) is not None}
    stream_of = streams_of(graph, marks)
    if len({*stream_of.values()}) == 1:
        return
    reading = _Reading(stream_of)
    for number, node in enumerate(graph.nodes):
        stream = stream_of[node]
        clock = reading.clocks.setdefault(stream, {})
        mark = marks.get(node)
        if mark is None:
            _require_ordered_reads(node, reading)
            _require_alone(node, reading)
        elif mark.what is Does.WAIT:
            if mark.on not in reading.recorded:
                raise StreamOrderError(_early(node, mark, marks, stream_of))
            for other, reached in reading.recorded[mark.on].items():
                clock[other] = max(clock.get(other, -1), reached)
        reading.position[node] = clock[stream] = number
        if mark is not None and mark.what is Does.RECORD:
            reading.recorded[mark.on] = dict(clock)


def streams_of(graph: Graph, marks: Mapping[Node, Mark]) -> dict[Node, _Stream]:
    """The stream that each node is put on, None for the main one."""
    stack: list[_Stream] = [None]
    found = {}
    for node in graph.nodes:
        what = marks[node].what if node in marks else None
        if what is Does.ENTER:
            stack.append(marks[node].on)
        found[node] = stack[-1]
        if what is Does.EXIT:
            stack.pop()
    return found


def _require_ordered_reads(node: Node, reading: _Reading) -> None:
    stream = reading.stream_of[node]
    for source in node.all_input_nodes:
        if source.op in ("placeholder", "get_attr") or not is_tensor(source):
            continue
        made_on = reading.stream_of[source]
        if made_on != stream and not reading.knows(stream, source):
            raise StreamOrderError(
                f"{_where(node)}: reads `{source.name}` of {_named(made_on)} on {_named(stream)}, and no "
                f"event says that it is made. {_REMEDY}"
            )


def _require_alone(node: Node, reading: _Reading) -> None:
    if not is_collective(node):
        return
    stream = reading.stream_of[node]
    for other, end in reading.in_flight:
        is_beside = stream is not None or reading.stream_of[other] is not None
        if is_beside and _group(other) != _group(node) and not reading.knows(stream, end):
            raise StreamOrderError(
                f"{_where(node)}: starts on {_named(stream)} while `{other.name}` of another group may still "
                f"run on {_named(reading.stream_of[other])}: two collectives at once can deadlock. {_REMEDY}"
            )
    reading.in_flight.append((node, next(filter(ends_collective, node.users), node)))


def _group(collective: Node) -> Any:
    return communicator(collective) or listed_ranks(collective) or collective.args[-1]


def _early(wait: Node, mark: Mark, marks: Mapping[Node, Mark], stream_of: Mapping[Node, _Stream]) -> str:
    record = next((node for node, other in marks.items() if other == Mark(Does.RECORD, mark.on)), None)
    told = f"{_where(wait)}: {_named(stream_of[wait])} waits for the event {mark.on!r} before"
    if record is None:
        return f"{told} anything records it. {_REMEDY}"
    circle = " -> ".join(_circle(record, marks, stream_of))
    also = f", and they wait for each other in a circle: {circle}" if circle else ""
    return f"{told} {_named(stream_of[record])} records it at `{record.name}`{also}. {_REMEDY}"


def _circle(record: Node, marks: Mapping[Node, Mark], stream_of: Mapping[Node, _Stream]) -> Iterator[str]:
    """The names of nodes that each have to come before the next one, from ``record`` round to it."""
    order: nx.DiGraph[Node] = nx.DiGraph()
    last: dict[_Stream, Node] = {}
    for node in marks:
        if (before := last.get(stream_of[node])) is not None:
            order.add_edge(before, node)
        last[stream_of[node]] = node
    records = {mark.on: node for node, mark in marks.items() if mark.what is Does.RECORD}
    order.add_edges_from(
        (records[mark.on], node)
        for node, mark in marks.items()
        if mark.what is Does.WAIT and mark.on in records
    )
    try:
        edges = nx.find_cycle(order, record)
    except nx.NetworkXNoCycle:
        return
    yield from (before.name for before, _ in edges)
    yield record.name


def _where(node: Node) -> str:
    path = module_path(node)
    return f"{path}: `{node.name}`" if path else f"`{node.name}`"


def _named(stream: _Stream) -> str:
    return "the main stream" if stream is None else f"stream {stream!r}"
