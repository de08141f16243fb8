"""What running a graph costs: bytes that stay, bytes that collectives move, the most it holds at once, time.

Counts what shapes tell. A symbolic size is not known, so what depends on one is left out and counted as such.
A time comes from outside, from whoever knows a machine.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from oproj_pass.passes.diff.graph_snapshot import GraphSnapshot, NodeSnapshot
from oproj_pass.passes.diff.traffic import payload_nbytes, value_nbytes

__all__ = ["Cost", "Timer", "cost_of"]

Timer = Callable[[NodeSnapshot, GraphSnapshot], float | None]
"""Microseconds of a node of a graph; None where they are not known."""

# Their result is their input's memory. A reshape of a transposed value copies, and counts.
_VIEWS = frozenset(
    {"view", "permute", "transpose", "t", "expand", "unsqueeze", "squeeze", "slice", "select", "getitem"}
    | {"detach", "alias", "wait_tensor", "split", "chunk", "unflatten", "flatten"}
)
_TRANSPOSING = frozenset({"permute", "transpose", "t"})


@dataclass(frozen=True)
class Cost:
    """Of one run of a graph on one rank.

    `input_nbytes`: weights and other inputs, which stay. `moved_nbytes`: what collectives are called with, as
    their own tests count it. `peak_nbytes`: inputs, and the values alive at once. `unknown`: values of a
    symbolic or unknown size, which are not counted. `us`: predicted time of the nodes that a timer knows.
    """

    input_nbytes: int
    moved_nbytes: int
    peak_nbytes: int
    unknown: int
    us: float | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return asdict(self)


def cost_of(graph: GraphSnapshot, timer: Timer | None = None) -> Cost:
    """The cost of `graph`."""
    sizes = {node.name: value_nbytes(node) for node in graph.nodes if node.op != "output"}
    inputs = sum(sizes[node.name] or 0 for node in graph.nodes if node.is_input)
    times = (
        [] if timer is None else [time for node in graph.nodes if (time := timer(node, graph)) is not None]
    )
    return Cost(
        input_nbytes=inputs,
        moved_nbytes=sum(payload_nbytes(node, graph) or 0 for node in graph.nodes),
        peak_nbytes=inputs + _peak(graph, sizes),
        unknown=sum(
            1
            for node in graph.nodes
            if sizes.get(node.name, 0) is None and node.dtype not in (None, "SymInt")
        ),
        us=None if timer is None else sum(times),
    )


def _peak(graph: GraphSnapshot, sizes: dict[str, int | None]) -> int:
    """The most that computed values hold at once, each until the last reader of it or of a view of it."""
    owner: dict[str, str] = {}
    last: dict[str, int] = {}
    for place, node in enumerate(graph.nodes):
        views = node.inputs and _is_view(node, graph)
        owner[node.name] = owner[node.inputs[0]] if views else node.name
        for name in (node.name, *node.inputs):
            last[owner[name]] = place
    freed: dict[int, list[str]] = {}
    for name, place in last.items():
        freed.setdefault(place, []).append(name)
    held = peak = 0
    for place, node in enumerate(graph.nodes):
        if not node.is_input and owner[node.name] == node.name:
            held += sizes.get(node.name) or 0
        peak = max(peak, held)
        held -= sum(sizes.get(name) or 0 for name in freed.get(place, ()) if not graph.by_name[name].is_input)
    return peak


def _is_view(node: NodeSnapshot, graph: GraphSnapshot) -> bool:
    name = _operation(node)
    if name == "reshape":
        return _operation(graph.by_name[node.inputs[0]]) not in _TRANSPOSING
    return name in _VIEWS


def _operation(node: NodeSnapshot) -> str:
    """`reshape` for `torch.ops.aten.reshape.default`, for `torch.reshape` and for the method."""
    parts = node.target.split(".")
    return parts[3] if node.target.startswith("torch.ops.") and len(parts) > 3 else parts[-1]
