"""Builds the parts of a page: the summary at its top, and a section for each hunk group.

Decides what a reader sees first and what is folded away. Escaping is `markup`'s, budgets are `html`'s.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from oproj_pass.passes.diff.boxes import edge_value
from oproj_pass.passes.diff.changes import Kind
from oproj_pass.passes.diff.comparison import Comparison
from oproj_pass.passes.diff.hunks import HunkGroup
from oproj_pass.passes.diff.labels import fold_paths, format_nbytes, shorten
from oproj_pass.passes.diff.markup import Markup, element
from oproj_pass.passes.diff.svg import draw_hunk
from oproj_pass.passes.diff.text import group_title, hunk_lines
from oproj_pass.passes.diff.traffic import collective_name, payload

__all__ = ["COSTS", "TIME", "group_section", "more_like_this", "summary_section", "table"]

_MAX_LINE = 400
_MAX_ROWS = 20
_MAX_PATHS = 200
COSTS = {
    "input_nbytes": "Weights and other inputs",
    "moved_nbytes": "Moved by collectives",
    "peak_nbytes": "Most held at once",
}
TIME = "Predicted time of products and collectives"
_SIGN = {Kind.ADDED: "+", Kind.REMOVED: "\N{MINUS SIGN}", Kind.CHANGED: "~", Kind.MOVED: ">"}
_LINE_CLASS = {"+": "added", "-": "removed", ">": "moved", " ": "kept"}


def summary_section(diff: Comparison) -> Markup:
    """Counts by kind, then the collectives and the inputs whose shape changed, where there are any."""
    counts = diff.summary()
    chips = [
        element(
            "li",
            {"class": f"chip {kind.value}"},
            element("b", None, f"{counts[kind.value]:,}"),
            f" {kind.value}",
        )
        for kind in Kind
    ]
    tables = [
        table("Cost of a run on one rank", ("", "Before", "After", "Change"), _cost_rows(counts["cost"])),
        table("Collectives", ("Operation", "Before", "After", "Moves"), _collective_rows(diff)),
        table("Inputs with a new shape", ("From → to", "Count", "First"), _input_rows(diff)),
    ]
    nodes = counts["nodes"]
    return element(
        "header",
        None,
        element("h1", None, "Graph diff"),
        element("p", {"class": "lead"}, f"{nodes['before']:,} nodes before, {nodes['after']:,} after"),
        element("ul", {"class": "chips"}, *chips),
        element("div", {"class": "tables"}, *tables),
    )


def group_section(
    diff: Comparison, group: HunkGroup, *, drawn: bool, max_lines: int, unfolded: bool
) -> Markup:
    """One folding section; its text is cut to `max_lines`."""
    lines = [
        element("span", {"class": f"line {_LINE_CLASS[sign]}"}, shorten(f"{sign} {line}", _MAX_LINE) + "\n")
        for sign, line in hunk_lines(diff, group)
    ]
    if len(lines) > max_lines:
        rest = len(lines) - max_lines
        lines[max_lines:] = [element("span", {"class": "line cut"}, f"… {rest:,} more lines in to_text()\n")]
    text = element(
        "details",
        {"class": "listing", "open": ""},
        element("summary", None, "As text"),
        element("pre", {"tabindex": "0"}, *lines),
    )
    body = [more_like_this(group.paths[1:]), *(_drawing(diff, group) if drawn else ()), text]
    return element(
        "details",
        {"class": "hunk", "open": ""} if unfolded else {"class": "hunk"},
        _headline(diff, group),
        element("div", {"class": "body" if drawn else "body undrawn"}, *body),
    )


def _headline(diff: Comparison, group: HunkGroup) -> Markup:
    kinds = Counter(diff.changes[i].kind for i in group.shown.members)
    chips = [
        element(
            "span",
            {"class": f"chip {kind.value}", "title": f"{kinds[kind]} {kind.value}"},
            f"{sign}{kinds[kind]}",
        )
        for kind, sign in _SIGN.items()
        if kinds[kind]
    ]
    times = (
        [element("span", {"class": "times"}, f"\N{MULTIPLICATION SIGN} {len(group.hunks):,}")]
        if len(group.hunks) > 1
        else []
    )
    return element(
        "summary",
        None,
        element("span", {"class": "path"}, shorten(group_title(group), 120)),
        *times,
        element("span", {"class": "chips"}, *chips),
    )


def more_like_this(paths: list[str]) -> Markup:
    """Places that look like the one that is shown, runs of layers as one; nothing where there are none."""
    folded = fold_paths(paths)
    if not folded:
        return Markup("")
    items = [element("li", None, shorten(path, 120) or "no module path") for path in folded[:_MAX_PATHS]]
    if len(folded) > _MAX_PATHS:
        items.append(element("li", None, f"… {len(folded) - _MAX_PATHS:,} more"))
    return element(
        "details",
        {"class": "more", "open": ""} if len(items) <= 3 else {"class": "more"},
        element("summary", None, f"{len(paths):,} more like this"),
        element("ul", None, *items),
    )


def _drawing(diff: Comparison, group: HunkGroup) -> tuple[Markup, Markup]:
    svg = draw_hunk(diff, group.shown)
    hint = "Point at a node, or use the arrow keys in the drawing, to see where the node comes from."
    return (
        element("div", {"class": "drawing"}, svg),
        element("div", {"class": "detail", "role": "status"}, hint),
    )


def _cost_rows(cost: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    before, after = cost["before"], cost["after"]
    rows = [
        (title, *_three(before[name], after[name]))
        for name, title in COSTS.items()
        if before[name] or after[name]
    ]
    if before["us"] is not None:
        times = f"{before['us']:,.0f} us", f"{after['us']:,.0f} us", f"{after['us'] - before['us']:+,.0f} us"
        rows.append((TIME, *times))
    return rows


def _three(before: int, after: int) -> tuple[str, ...]:
    sign = "+" if after > before else "\N{MINUS SIGN}" if after < before else ""
    return format_nbytes(before), format_nbytes(after), sign + format_nbytes(abs(after - before))


def _collective_rows(diff: Comparison) -> list[tuple[str, ...]]:
    sizes: dict[str, Counter[str]] = {}
    for graph in (diff.before, diff.after):
        for node in graph.nodes:
            name, size = collective_name(node), payload(node, graph)
            if name and size and graph is diff.after:
                sizes.setdefault(name, Counter())[size] += 1
    return [
        (name, f"{count['before']:,}", f"{count['after']:,}", _multiples(sizes.get(name, Counter())))
        for name, count in diff.summary()["collectives"].items()
    ]


def _multiples(sizes: Counter[str]) -> str:
    shown = [f"{count:,} \N{MULTIPLICATION SIGN} {size}" for size, count in sizes.most_common(3)]
    return ", ".join(shown) + (", …" if len(sizes) > 3 else "")


def _input_rows(diff: Comparison) -> list[tuple[str, ...]]:
    reshaped = [c for c in diff.changes if c.node.is_input and "shape" in c.fields]
    counts = Counter(edge_value(change) for change in reshaped)
    first = {edge_value(change): change for change in reversed(reshaped)}
    return [
        (value, f"{count:,}", shorten(first[value].path or first[value].node.name, 60))
        for value, count in counts.items()
    ]


def table(caption: str, heads: Iterable[str], rows: list[tuple[str, ...]]) -> Markup:
    """A captioned table; nothing where there are no rows."""
    if not rows:
        return Markup("")
    head = element("tr", None, *(element("th", {"scope": "col"}, name) for name in heads))
    body = [element("tr", None, *(element("td", None, cell) for cell in row)) for row in rows[:_MAX_ROWS]]
    note = f" (first {_MAX_ROWS} of {len(rows):,})" if len(rows) > _MAX_ROWS else ""
    return element(
        "table",
        None,
        element("caption", None, caption + note),
        element("thead", None, head),
        element("tbody", None, *body),
    )
