"""Runs the exchanges of chunks on a side stream, so that one chunk's may run under another one's product.

npugraph_ex's kernel of an all-to-all waits for its result on the stream that it starts on, whatever the graph
does in between, and torchair takes ``wait_tensor`` for a copy and sets no order by it. So:

1. Scan: the regions whose rows are exchanged in chunks; each collective of theirs, and where it is awaited.
2. Rewrite: the collective and its wait go to the side stream, from an event before it to an event behind it;
   the main stream waits for the latter where it waited for the collective.

All exchanges are on one side stream, each awaited there before the next one starts: two collectives of
different groups at once can deadlock. It changes no order of the main stream.
"""

import time
from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule, Node

from oproj_pass.passes.contract import PassRecord
from oproj_pass.passes.graph.collectives import ends_collective, is_collective
from oproj_pass.passes.graph.metadata import inherit_origin
from oproj_pass.passes.graph.provenance import is_tensor
from oproj_pass.passes.overlap.streams import Streams, put_on_stream
from oproj_pass.passes.strategies.region import ShardedRegion

STREAM = "oproj.chunks"


class ChunksInFlight:
    """The pass; runs when every node is where it stays.

    ``regions``: what was sharded, filled by the time this pass runs. ``streams``: the spelling of the
    compiler that will read the graph.
    """

    name = "chunks_in_flight"

    def __init__(self, regions: Sequence[ShardedRegion], streams: Streams) -> None:
        self.regions, self.streams = regions, streams

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> PassRecord:
        """Rewrite ``gm``; ``example_inputs`` are left as they are."""
        start = time.perf_counter()
        taken = [region for region in self.regions if region.config.chunks > 1]
        changed = [node for number, region in enumerate(taken) for node in self._rewrite(region, number)]
        return PassRecord(self.name, tuple(taken), (), tuple(changed), time.perf_counter() - start)

    def _rewrite(self, region: ShardedRegion, number: int) -> list[Node]:
        graph = region.nodes[0].graph
        existing = set(graph.nodes)
        for index, collective in enumerate(filter(is_collective, region.nodes)):
            self._move(collective, f"{STREAM}.{number}.{index}")
        created = [node for node in graph.nodes if node not in existing]
        for node in created:
            inherit_origin(node, region.nodes[-1])
        return created

    def _move(self, collective: Node, event: str) -> None:
        graph, streams = collective.graph, self.streams
        (awaited,) = filter(ends_collective, collective.users)
        done = put_on_stream(streams, STREAM, event, collective, collective.next)
        with graph.inserting_before(awaited):
            streams.wait(graph, done)
            for tensor in filter(_is_computed, collective.all_input_nodes):
                streams.hold(graph, tensor)
        collective.append(awaited)


def _is_computed(node: Node) -> bool:
    return node.op in ("call_function", "call_method") and is_tensor(node)
