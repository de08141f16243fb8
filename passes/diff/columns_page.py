"""The page of several passes side by side: what each did and costs, the nodes in columns, then each drawn.

Decides the page's order; escaping is `markup`'s, the drawings are those of a single diff.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from oproj_pass.passes.diff.changes import Kind
from oproj_pass.passes.diff.columns import cells, title_of, track_name
from oproj_pass.passes.diff.comparison import Comparison
from oproj_pass.passes.diff.cost import Timer, cost_of
from oproj_pass.passes.diff.document import document
from oproj_pass.passes.diff.graph_snapshot import GraphSnapshot
from oproj_pass.passes.diff.html import hunk_sections, page_asset, toolbar
from oproj_pass.passes.diff.labels import format_nbytes, print_node, shorten
from oproj_pass.passes.diff.markup import Markup, element
from oproj_pass.passes.diff.sections import COSTS, TIME, more_like_this, table
from oproj_pass.passes.diff.tracks import Track, TrackGroup
from oproj_pass.passes.diff.traffic import count_collectives

__all__ = ["render_columns"]

_MAX_ROWS = 400
_MAX_GROUPS = 200
_STEP_COLUMNS = (*(kind.value for kind in Kind if kind is not Kind.KEPT), "hunks")


def render_columns(names: Sequence[str], diffs: Sequence[Comparison], groups: Sequence[TrackGroup]) -> str:
    """The whole document."""
    header = element(
        "header",
        None,
        element("h1", None, "Passes side by side"),
        element("p", {"class": "lead"}, " \N{RIGHTWARDS ARROW} ".join(names)),
        element("div", {"class": "tables"}, *_tables(names, diffs)),
    )
    followed = [_columns(names, diffs, group, unfolded=i < 3) for i, group in enumerate(groups[:_MAX_GROUPS])]
    if len(groups) > _MAX_GROUPS:
        followed.append(element("p", {"class": "equal"}, f"{len(groups) - _MAX_GROUPS:,} more blocks."))
    body = followed or [element("p", {"class": "equal"}, "The graphs are equal.")]
    main = element("main", None, element("h2", None, "Nodes, state by state"), *body, *_steps(names, diffs))
    tools = toolbar() if groups else Markup("")
    return document(
        "Passes side by side", page_asset("page.css"), header, tools, main, script=page_asset("page.js")
    )


def _tables(names: Sequence[str], diffs: Sequence[Comparison]) -> Iterator[Markup]:
    counts = [diff.summary() for diff in diffs]
    steps = [
        (name, *(f"{count[column]:,}" for column in _STEP_COLUMNS))
        for name, count in zip(names[1:], counts, strict=True)
    ]
    yield table("What each step did", ("Step", *_STEP_COLUMNS), steps)
    graphs = [diffs[0].before, *(diff.after for diff in diffs)]
    yield table("Cost of a run on one rank", ("", *names), list(_cost_rows(graphs, diffs[0].timer)))
    calls = [count_collectives(graph) for graph in graphs]
    found = sorted({name for each in calls for name in each})
    rows = [(name, *(f"{each.get(name, 0):,}" for each in calls)) for name in found]
    yield table("Calls of collectives", ("Operation", *names), rows)


def _cost_rows(graphs: Sequence[GraphSnapshot], timer: Timer | None) -> Iterator[tuple[str, ...]]:
    yield "Nodes", *(f"{len(graph.nodes):,}" for graph in graphs)
    costs = [cost_of(graph, timer).to_dict() for graph in graphs]
    for name, title in COSTS.items():
        if any(cost[name] for cost in costs):
            yield title, *(format_nbytes(cost[name]) for cost in costs)
    if timer is not None:
        yield TIME, *(f"{cost['us']:,.0f} us" for cost in costs)


def _columns(
    names: Sequence[str], diffs: Sequence[Comparison], group: TrackGroup, *, unfolded: bool
) -> Markup:
    heads = [element("th", {"scope": "col"}, name) for name in ("Node", *names)]
    rows = [_row(track, diffs, group.blocks[0]) for track in group.tracks[:_MAX_ROWS]]
    if len(group.tracks) > _MAX_ROWS:
        rows.append(element("tr", None, element("td", None, f"… {len(group.tracks) - _MAX_ROWS:,} more")))
    times = len(group.blocks)
    count = [element("span", {"class": "times"}, f"\N{MULTIPLICATION SIGN} {times:,}")] if times > 1 else []
    return element(
        "details",
        {"class": "hunk", "open": ""} if unfolded else {"class": "hunk"},
        element("summary", None, element("span", {"class": "path"}, shorten(title_of(group), 120)), *count),
        element(
            "div",
            {"class": "body undrawn"},
            more_like_this(list(group.blocks[1:])),
            element("div", {"class": "columns", "tabindex": "0"}, _table(heads, rows)),
        ),
    )


def _table(heads: Sequence[Markup], rows: Sequence[Markup]) -> Markup:
    head = element("thead", None, element("tr", None, *heads))
    return element("table", None, head, element("tbody", None, *rows))


def _row(track: Track, diffs: Sequence[Comparison], block: str) -> Markup:
    title = "\n".join(dict.fromkeys(print_node(node) for node in track.nodes if node is not None))
    name = element(
        "th", {"scope": "row", "title": shorten(title, 1000)}, shorten(track_name(track, block), 80)
    )
    return element("tr", {"class": "track"}, name, *(_cell(*cell) for cell in cells(track, diffs)))


def _cell(kind: Kind | None, text: str) -> Markup:
    if kind is None or kind is Kind.KEPT:
        return element("td", {"class": "same"}, shorten(text, 80))
    return element(
        "td", {"class": f"cell {kind.value}", "title": kind.value}, shorten(text, 80) or kind.value
    )


def _steps(names: Sequence[str], diffs: Sequence[Comparison]) -> Iterator[Markup]:
    for (old, new), diff in zip(pairwise(names), diffs, strict=True):
        yield element("h2", None, f"{old} \N{RIGHTWARDS ARROW} {new}")
        yield from hunk_sections(diff, unfolded=False) or [
            element("p", {"class": "equal"}, "It changed nothing.")
        ]
