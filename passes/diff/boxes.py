"""Decides what a box of a drawing says, and how large it must be for that.

A box has a name, its constants and, on a collective, its payload; the value it yields goes on the edge
below. What does not fit is shortened; the title has everything known of the node.
"""

from dataclasses import dataclass

from oproj_pass.passes.diff.changes import Kind, NodeChange
from oproj_pass.passes.diff.comparison import Comparison
from oproj_pass.passes.diff.labels import format_value, print_constants, print_node, short_name, shorten
from oproj_pass.passes.diff.traffic import payload

__all__ = ["LINE_HEIGHT", "Box", "describe_box", "edge_value"]

LINE_HEIGHT = 16.0
_NAME_WIDTH = 7.3  # of one character of the 12 px face
_TEXT_WIDTH = 6.7  # of one character of the 11 px face
_MIN_WIDTH = 90.0
_MAX_CHARS = 34
_MAX_TITLE = 600
_SIGN = {
    Kind.KEPT: "",
    Kind.ADDED: "+ ",
    Kind.REMOVED: "\N{MINUS SIGN} ",
    Kind.CHANGED: "~ ",
    Kind.MOVED: "> ",
}


@dataclass(frozen=True)
class Box:
    """One node as it is drawn."""

    kind: Kind
    is_input: bool
    lines: tuple[str, ...]
    value: str
    title: str

    @property
    def width(self) -> float:
        """Pixels, for its lines and for the value below."""
        texts = max(map(len, (*self.lines[1:], "")))
        name = len(self.lines[0]) * _NAME_WIDTH
        return max(name + 20, texts * _TEXT_WIDTH + 20, len(self.value) * _TEXT_WIDTH + 4, _MIN_WIDTH)

    @property
    def height(self) -> float:
        """Pixels, for its lines."""
        return 12 + LINE_HEIGHT * len(self.lines)


def describe_box(diff: Comparison, change: NodeChange, path: str, *, is_context: bool) -> Box:
    """The box of `change` in the hunk at `path`; as context, it is drawn as if it were kept."""
    kind, node = Kind.KEPT if is_context else change.kind, change.node
    name = _SIGN[kind] + short_name(node).removeprefix(path.rpartition(".")[0] + ".")
    graph = diff.graph_of(change)
    size, time = payload(node, graph), diff.time_of(node, graph)
    costs = [f"moves {size}" if size else "", f"{time:.1f} us" if time is not None else ""]
    cost = ", ".join(cost for cost in costs if cost)
    lines = (name, "" if node.op == "output" else print_constants(node), cost)
    return Box(
        kind=kind,
        is_input=node.is_input,
        lines=tuple(shorten(line, _MAX_CHARS) for line in lines if line),
        value=shorten(edge_value(change), _MAX_CHARS),
        title=_title(change, kind, size),
    )


def edge_value(change: NodeChange) -> str:
    """`bf16[s33, 64]`, or `bf16[64, 128] → [64, 32]` where a change made it another."""
    now = format_value(change.node)
    was = format_value(change.before) if change.before else now
    if not now or not was or was == now:
        return now or was
    dtype, bracket, _ = now.partition("[")
    return f"{was} → {now.removeprefix(dtype) if bracket and was.startswith(dtype + '[') else now}"


def _title(change: NodeChange, kind: Kind, size: str | None) -> str:
    is_changed = kind is Kind.CHANGED
    sides = (change.before, change.after) if is_changed else (change.node,)
    facts = [
        f"changed: {', '.join(change.fields)}" if is_changed else kind.value,
        *(print_node(side) for side in sides if side is not None),
        f"module {change.path}" if change.path else "",
        f"source {change.node.source}" if change.node.source else "",
        f"moves {size} from each rank" if size else "",
    ]
    return "\n".join(shorten(fact, _MAX_TITLE) for fact in facts if fact)
