"""Draws one hunk as inline SVG: a box for each node, its value on the edge below it.

Decides what a box says and how wide it is. Colour lives in the page's style sheet, by class; positions
come from `layout`. What does not fit is shortened; the whole text is in the box's title.
"""

from typing import TYPE_CHECKING

from oproj_pass.passes.diff.changes import Kind, NodeChange
from oproj_pass.passes.diff.hunks import Hunk
from oproj_pass.passes.diff.labels import format_value, print_constants, print_node, short_name, shorten
from oproj_pass.passes.diff.layout import Layout, place_nodes
from oproj_pass.passes.diff.markup import Markup, element
from oproj_pass.passes.diff.traffic import payload

if TYPE_CHECKING:
    from oproj_pass.passes.diff.graph_diff import GraphDiff

__all__ = ["draw_hunk", "edge_value"]

_CHAR = 7.3  # of the 12 px monospace face; 11 px lines are narrower
_SUB = 0.92
_LINE = 16.0
_MAX_CHARS = 34
_MAX_TITLE = 600
_MARGIN = 12.0
_ARROW = 5.0
_SIGN = {
    Kind.KEPT: "",
    Kind.ADDED: "+ ",
    Kind.REMOVED: "\N{MINUS SIGN} ",
    Kind.CHANGED: "~ ",
    Kind.MOVED: "> ",
}
# The value flow of the new graph makes the spine of the drawing; weights and removed edges stand aside.
_PULL = {"kept": 1.0, "added": 1.0, "removed": 0.001}
_PULL_OF_INPUT = 0.001


def draw_hunk(diff: "GraphDiff", hunk: Hunk) -> Markup:
    """The hunk's nodes and their context, with every edge between them that touches a changed node."""
    indices = sorted((*hunk.members, *hunk.context))
    members = set(hunk.members)
    edges = {
        (source, user): diff.merged.edges[source, user]["kind"]
        for source, user in diff.merged.subgraph(indices).edges
        if source in members or user in members
    }
    sources = {source for source, _ in edges}
    boxes = {i: _box_lines(diff, diff.changes[i], hunk.path) for i in indices}
    values = {i: shorten(edge_value(diff.changes[i]), _MAX_CHARS) for i in indices}
    layout = place_nodes(
        {i: _box_size(boxes[i], values[i]) for i in indices},
        {
            edge: _PULL_OF_INPUT if diff.changes[edge[0]].node.is_input else _PULL[edges[edge]]
            for edge in edges
        },
    )
    width, height = layout.width + 2 * _MARGIN, layout.height + 2 * _MARGIN
    label = f"Drawing of {len(members)} changed nodes and {len(hunk.context)} around them, {hunk.path}"
    return element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"{-_MARGIN:g} {-_MARGIN:g} {width:.0f} {height:.0f}",
            "width": f"{width:.0f}",
            "height": f"{height:.0f}",
            "role": "group",
            "aria-label": label,
        },
        *(_edge(layout, edge, kind) for edge, kind in edges.items()),
        *(_value(layout, i, values[i], boxes[i], diff.changes[i]) for i in indices if i in sources),
        *(_node(diff, layout, i, boxes[i], values[i], i in members) for i in indices),
    )


def edge_value(change: NodeChange) -> str:
    """`bf16[s33, 64]`, or `bf16[64, 128] → [64, 32]` where a change made it another."""
    now = format_value(change.node)
    was = format_value(change.before) if change.before else now
    if not now or not was or was == now:
        return now or was
    assert change.before is not None
    same_dtype = change.before.dtype == change.node.dtype
    return f"{was} → {now[now.index('[') :] if same_dtype and '[' in now else now}"


def _box_lines(diff: "GraphDiff", change: NodeChange, path: str) -> list[str]:
    node = change.node
    name = short_name(node).removeprefix(path.rpartition(".")[0] + ".")
    constants = "" if node.op == "output" else print_constants(node)
    size = payload(node, diff.graph_of(change))
    lines = [_SIGN[change.kind] + name, constants, f"moves {size}" if size else ""]
    return [shorten(line, _MAX_CHARS) for line in lines if line]


def _box_size(lines: list[str], value: str) -> tuple[float, float]:
    chars = max(len(lines[0]), *(_SUB * len(line) for line in lines))
    width = max(chars * _CHAR + 20, len(value) * _CHAR * _SUB + 4, 90)
    return width, 12 + _LINE * len(lines)


def _node(diff: "GraphDiff", layout: Layout, i: int, lines: list[str], value: str, is_member: bool) -> Markup:
    change = diff.changes[i]
    x, y = layout.centres[i]
    width, height = _box_size(lines, value)
    kind = change.kind if is_member else Kind.KEPT
    if not is_member:
        lines = [lines[0].removeprefix(_SIGN[change.kind]), *lines[1:]]
    title = _title(diff, change, kind)
    rows = [
        element(
            "text",
            {
                "x": f"{x:.1f}",
                "y": f"{y - height / 2 + 18 + _LINE * row:.1f}",
                "class": "op" if row == 0 else "sub",
            },
            line,
        )
        for row, line in enumerate(lines)
    ]
    box = {
        "x": f"{x - width / 2:.1f}",
        "y": f"{y - height / 2:.1f}",
        "width": f"{width:.1f}",
        "height": f"{height:.1f}",
        "rx": f"{height / 2:.1f}" if change.node.is_input else "5",
    }
    attributes = {"class": f"node {kind.value}", "role": "img", "tabindex": "-1", "aria-label": title}
    return element("g", attributes, element("title", None, title), element("rect", box), *rows)


def _title(diff: "GraphDiff", change: NodeChange, kind: Kind) -> str:
    """Everything known of a node, a line each."""
    node = change.node
    size = payload(node, diff.graph_of(change))
    what = f"{kind.value}: {', '.join(change.fields)}" if kind is Kind.CHANGED else kind.value
    both = [change.before, change.after] if kind is Kind.CHANGED else [node]
    facts = [
        what,
        *(print_node(side) for side in both if side is not None),
        f"module {change.path}" if change.path else "",
        f"source {node.source}" if node.source else "",
        f"moves {size} from each rank" if size else "",
    ]
    return "\n".join(shorten(fact, _MAX_TITLE) for fact in facts if fact)


def _edge(layout: Layout, edge: tuple[int, int], kind: str) -> Markup:
    points = layout.routes[min(edge), max(edge)]
    (x, y), path = points[0], f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for to_x, to_y in points[1:]:
        middle = (y + to_y) / 2
        path += f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
        x, y = to_x, to_y
    if edge[0] < edge[1]:
        tip, direction = points[-1], -1
    else:
        tip, direction = points[0], 1
    arrow = f"M{tip[0]:.1f} {tip[1]:.1f}l{-_ARROW} {direction * _ARROW * 1.4}h{2 * _ARROW}z"
    return element(
        "g",
        {"class": f"edge {kind}", "aria-hidden": "true"},
        element("path", {"class": "wire", "d": path}),
        element("path", {"class": "tip", "d": arrow}),
    )


def _value(layout: Layout, i: int, value: str, lines: list[str], change: NodeChange) -> Markup:
    x, y = layout.centres[i]
    bottom = y + _box_size(lines, value)[1] / 2
    kind = "changed" if "→" in value else "plain"
    attributes = {
        "x": f"{x:.1f}",
        "y": f"{bottom + 17:.1f}",
        "class": f"value {kind}",
        "aria-hidden": "true",
    }
    return element("text", attributes, value)
