"""Draws one hunk as inline SVG.

Colour lives in the page's style sheet, by class; what a box says comes from `boxes`, where it stands from
`layout`.
"""

from oproj_pass.passes.diff.boxes import LINE_HEIGHT, Box, describe_box
from oproj_pass.passes.diff.comparison import Comparison
from oproj_pass.passes.diff.hunks import Hunk
from oproj_pass.passes.diff.layout import Point, place_nodes
from oproj_pass.passes.diff.markup import Markup, element

__all__ = ["draw_hunk"]

_MARGIN = 12.0
_ARROW = 5.0
_VALUE_HEIGHT = 22.0  # of the value below a box, which no edge may cross
# The flow of the new graph makes the spine of the drawing; weights and removed edges stand aside.
_PULL = {"kept": 1.0, "added": 1.0, "removed": 0.001}
_PULL_OF_INPUT = 0.001


def draw_hunk(diff: Comparison, hunk: Hunk) -> Markup:
    """The hunk's nodes and their context, with every edge between them that touches a changed node."""
    members = set(hunk.members)
    indices = sorted((*hunk.members, *hunk.context))
    edges = {
        (source, user): str(diff.merged.edges[source, user]["kind"])
        for source, user in diff.merged.subgraph(indices).edges
        if source in members or user in members
    }
    boxes = {i: describe_box(diff, diff.changes[i], hunk.path, is_context=i not in members) for i in indices}
    sources = {source for source, _ in edges}
    below = {i: _VALUE_HEIGHT if i in sources and box.value else 0.0 for i, box in boxes.items()}
    layout = place_nodes(
        {i: (box.width, box.height + below[i]) for i, box in boxes.items()},
        {edge: _PULL_OF_INPUT if boxes[edge[0]].is_input else _PULL[kind] for edge, kind in edges.items()},
    )
    width, height = layout.width + 2 * _MARGIN, layout.height + 2 * _MARGIN
    attributes = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"{-_MARGIN:g} {-_MARGIN:g} {width:.0f} {height:.0f}",
        "width": f"{width:.0f}",
        "height": f"{height:.0f}",
        "role": "group",
        "aria-label": f"{len(members)} changed nodes and {len(hunk.context)} around them, {hunk.path}",
    }
    return element(
        "svg",
        attributes,
        *(
            _edge(layout.routes[min(edge), max(edge)], kind, runs_down=edge[0] < edge[1])
            for edge, kind in edges.items()
        ),
        *(_value(boxes[i], _raised(layout.centres[i], below[i])) for i in sorted(sources)),
        *(_node(box, _raised(layout.centres[i], below[i])) for i, box in boxes.items()),
    )


def _raised(centre: Point, below: float) -> Point:
    """The centre of a box that has ``below`` under it, of the centre of both."""
    return centre[0], centre[1] - below / 2


def _node(box: Box, centre: Point) -> Markup:
    x, top = centre[0], centre[1] - box.height / 2
    frame = {
        "x": f"{x - box.width / 2:.1f}",
        "y": f"{top:.1f}",
        "width": f"{box.width:.1f}",
        "height": f"{box.height:.1f}",
        "rx": f"{box.height / 2:.1f}" if box.is_input else "5",
    }
    rows = [
        element("text", {"class": "sub" if row else "op", **_at(x, top + 18 + LINE_HEIGHT * row)}, line)
        for row, line in enumerate(box.lines)
    ]
    attributes = {"class": f"node {box.kind.value}", "role": "img", "tabindex": "-1", "aria-label": box.title}
    return element("g", attributes, element("title", None, box.title), element("rect", frame), *rows)


def _value(box: Box, centre: Point) -> Markup:
    kind = "changed" if "→" in box.value else "plain"
    place = _at(centre[0], centre[1] + box.height / 2 + 17)
    return element("text", {"class": f"value {kind}", "aria-hidden": "true", **place}, box.value)


def _edge(points: list[Point], kind: str, *, runs_down: bool) -> Markup:
    (x, y), *rest = points
    wire = f"M{x:.1f} {y:.1f}"
    for to_x, to_y in rest:
        middle = (y + to_y) / 2
        wire += f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
        x, y = to_x, to_y
    (tip_x, tip_y), back = (points[-1], -_ARROW) if runs_down else (points[0], _ARROW)
    tip = f"M{tip_x:.1f} {tip_y:.1f}l{-_ARROW} {back * 1.4}h{2 * _ARROW}z"
    return element(
        "g",
        {"class": f"edge {kind}", "aria-hidden": "true"},
        element("path", {"class": "wire", "d": wire}),
        element("path", {"class": "tip", "d": tip}),
    )


def _at(x: float, y: float) -> dict[str, str]:
    return {"x": f"{x:.1f}", "y": f"{y:.1f}"}
