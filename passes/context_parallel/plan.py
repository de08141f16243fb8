"""Decides where whole rows are needed: what is gathered for the attentions, and where rows are restored.

Both are cuts through the local part of the graph:

- Keys and values may be gathered at any value that only they are made of. The cut with the fewest bytes a row
  is taken, of several the one with the fewest gathers, then the latest: key and value heads before they are
  repeated, the latent of MLA before it is projected to heads. What lies behind the cut is computed on all
  rows, by every rank.
- Rows are restored once: at the last value through which all of the result goes, in front of the head.
"""

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import networkx as nx
from torch import Tensor
from torch.fx import Node

from oproj_pass.passes.context_parallel.flow import END, Flow, local_flow, reads_beside_gather
from oproj_pass.passes.context_parallel.rows import CannotSplit, at_place
from oproj_pass.passes.context_parallel.trace import RowTrace
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.collectives import FLOAT8
from oproj_pass.passes.graph.provenance import value_of

_UNITS = 1 << 20  # more units than a graph has: bytes outweigh their number


@dataclass(frozen=True)
class WholeValues:
    """``gathered``: local values that are gathered for whoever reads them whole. ``whole``: values that are
    computed from whole ones, although local rows reach them."""

    gathered: frozenset[Node]
    whole: frozenset[Node]


def gather_for_attention(trace: RowTrace) -> WholeValues:
    """The cut in front of all that is needed whole before the result is; raises ``CannotSplit``."""
    flow = local_flow(trace)
    _require_order(flow)
    needed = {at_place(node, place) for node, found in trace.followed.items() for place in found.gathers}
    private = _only_read_for(trace, flow, needed)
    needed |= {source for _, source in trace.ends if trace.unit(source) in private}
    for node in needed:
        if trace.unit(node) is not node:
            raise CannotSplit(f"`{node.name}` is a part of memory that is written in place")
        if not isinstance(value_of(node), Tensor):
            raise CannotSplit(f"the results of `{node.name}` are needed whole, all in one")
    cut, behind = _smallest_cut(trace, flow, private, needed)
    _require_gatherable(cut)
    return WholeValues(frozenset(cut), frozenset(node for node in trace.local if trace.unit(node) in behind))


def restore_at(trace: RowTrace, already: WholeValues) -> tuple[Node, frozenset[Node]]:
    """The value at which rows are restored, and all values behind it; raises ``CannotSplit``."""
    flow = local_flow(trace)
    flow.remove_nodes_from([trace.unit(node) for node in already.whole])
    known = already.whole | already.gathered
    flow.add_edges_from((trace.unit(source), END) for _, source in trace.ends if source not in known)
    start = trace.unit(trace.embedding)
    if END not in flow or not nx.has_path(flow, start, END):
        raise CannotSplit("no rows of its embedding reach its result")
    chain = _crossed_by_all_paths(flow, start)
    attentions = {trace.unit(node) for node in trace.attentions if node in trace.local}
    before = _reached(flow, attentions)
    leading_on = _reached(
        flow.reverse(copy=False), [x for node in attentions if node in flow for x in flow.predecessors(node)]
    )
    candidates = [
        node
        for node in chain
        if node in before
        and node not in leading_on
        and trace.local[node].is_plain
        and trace.unit(node) is node
        and isinstance(value_of(node), Tensor)
    ]
    if not candidates:
        leaving = sorted({f"`{source.name}`" for _, source in trace.ends if source not in known})
        raise CannotSplit(
            f"its rows leave at {', '.join(leaving)}: no one value behind the last attention leads to all"
        )
    value = _in_front_of_head(candidates, chain)
    _require_gatherable([value])
    units = nx.descendants(flow, value) - {END}
    return value, frozenset(node for node in trace.local if trace.unit(node) in units)


def _require_gatherable(values: Iterable[Node]) -> None:
    for node in values:
        if (dtype := value_of(node).dtype) in FLOAT8:
            raise CannotSplit(f"`{node.name}` is {dtype}, which collectives do not take")


def _require_order(flow: Flow) -> None:
    if not nx.is_directed_acyclic_graph(flow):
        written, *_ = nx.find_cycle(flow)[0]
        raise CannotSplit(f"`{written}` is written in place with what was made of it")


def _in_front_of_head(candidates: list[Node], chain: list[Node]) -> Node:
    """The last candidate in front of the last product behind the first of them, if there is a product."""
    place = {node: index for index, node in enumerate(chain)}
    behind = chain[place[candidates[0]] + 1 :]
    head = next((node for node in reversed(behind) if ops.operation(node) in ops.MATMUL), None)
    return [node for node in candidates if head is None or place[node] < place[head]][-1]


def _only_read_for(trace: RowTrace, flow: Flow, needed: Collection[Node]) -> set[Node]:
    """The units that nothing but ``needed`` values is made of."""
    private: set[Node] = set()
    units = {trace.unit(node) for node in needed}
    also_local = {trace.unit(node) for node in reads_beside_gather(trace)}
    for unit in reversed(list(nx.topological_sort(flow))):
        assert isinstance(unit, Node)
        readers = list(flow.successors(unit))
        if (unit in units or readers) and unit not in also_local and private.issuperset(readers):
            private.add(unit)
    return private


def _smallest_cut(
    trace: RowTrace, flow: Flow, private: set[Node], needed: Collection[Node]
) -> tuple[set[Node], set[Node]]:
    """The units whose rows are gathered, and the private ones behind them: the fewest bytes, then units, then
    the latest.

    Each unit is an edge as wide as its row. Of equal cuts, networkx returns the one nearest to the target.
    """
    network: nx.DiGraph[object] = nx.DiGraph()
    inside = private & set(needed)
    network.add_edges_from(((unit, "out"), "needed") for unit in inside)
    for unit in private:
        network.add_edge((unit, "in"), (unit, "out"), **_width(trace, unit))
        sources = set(flow.predecessors(unit))
        network.add_edges_from(((source, "out"), (unit, "in")) for source in sources & private)
        if not private.issuperset(sources):
            network.add_edge("outside", (unit, "in"))
    direct = set(needed) - private
    if not inside or "outside" not in network or not nx.has_path(network, "outside", "needed"):
        return direct, set()
    try:
        _, (_, behind_cut) = nx.minimum_cut(network, "outside", "needed")
    except nx.NetworkXUnbounded:
        raise CannotSplit(
            "its keys and values have batch entries merged into their rows, or a type no collective takes"
        ) from None
    crossed = {unit for unit in private if (unit, "out") in behind_cut}
    behind = {unit for unit in crossed if (unit, "in") in behind_cut}
    return direct | (crossed - behind), behind


def _width(trace: RowTrace, unit: Node) -> dict[str, int]:
    """Bytes of a row without its symbolic sizes, and a little for each unit; nothing, so infinite, where rows
    are not by themselves or no collective takes them."""
    value, rows = value_of(unit), trace.local[unit]
    if not isinstance(value, Tensor) or not rows.is_plain or value.dtype in FLOAT8:
        return {}
    sizes = [size for dim, size in enumerate(value.shape) if dim != rows.dim and isinstance(size, int)]
    return {"capacity": math.prod(sizes) * value.element_size() * _UNITS + 1}


def _reached(flow: Flow, starts: Iterable[Node | str]) -> set[Node | str]:
    found: set[Node | str] = set()
    pending = list[Node | str](starts)
    while pending:
        unit = pending.pop()
        if unit not in found and unit in flow:
            found.add(unit)
            pending += flow.successors(unit)
    return found


def _crossed_by_all_paths(flow: Flow, start: Node) -> list[Node]:
    """The units that every path from ``start`` to the end goes through, in order."""
    return list(_until_end(start, nx.immediate_dominators(flow.reverse(copy=False), END)))


def _until_end(start: Node, next_crossed: dict[Node | str, Node | str]) -> Iterator[Node]:
    unit: Node | str = start
    while isinstance(unit, Node):
        yield unit
        unit = next_crossed[unit]
