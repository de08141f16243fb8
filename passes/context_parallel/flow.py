"""Which local values are made of which: the graph through which whole values are cut."""

from collections.abc import Iterator
from typing import TypeAlias

import networkx as nx
from torch.fx import Node

from oproj_pass.passes.context_parallel.rows import at_place
from oproj_pass.passes.context_parallel.trace import RowTrace

END = "end"
Flow: TypeAlias = "nx.DiGraph[Node | str]"


def local_flow(trace: RowTrace) -> Flow:
    """Units of local values, each with an edge to the units that are computed from its local rows."""
    flow: Flow = nx.DiGraph()
    flow.add_node(trace.unit(trace.embedding))
    beside = {*reads_beside_gather(trace)}
    for node, found in trace.followed.items():
        if found.rows is None:
            continue
        gathered = {at_place(node, place) for place in found.gathers} - beside
        for source in node.all_input_nodes:
            if source in trace.local and source not in gathered:
                first, second = trace.unit(source), trace.unit(node)
                flow.add_edges_from([(first, second)] if first is not second else [])
    return flow


def reads_beside_gather(trace: RowTrace) -> Iterator[Node]:
    """Values that one operation needs both local and whole, such as queries that are the keys too."""
    for node, found in trace.followed.items():
        whole = {at_place(node, place) for place in found.gathers}
        for index, value in enumerate(node.args):
            if isinstance(value, Node) and value in whole and ("args", index) not in found.gathers:
                yield value
