"""Builds the page of a diff, and the frame that shows it in a notebook.

Decides how much the page holds. What is over budget is counted on the page, and printed in full by `to_text`.
"""

from html import escape
from importlib.resources import files

from oproj_pass.passes.diff.comparison import Comparison
from oproj_pass.passes.diff.document import document
from oproj_pass.passes.diff.kept import kept_section
from oproj_pass.passes.diff.markup import Markup, element
from oproj_pass.passes.diff.sections import group_section, summary_section

__all__ = ["hunk_sections", "notebook_frame", "page_asset", "render_page", "toolbar"]

# A page of these sizes is about 3 MB, and a drawing of more nodes is no longer read.
_MAX_DRAWN_NODES = 1500
_MAX_DRAWN_NODES_OF_HUNK = 150
_MAX_LINES = 3000
_MAX_LINES_OF_HUNK = 400
_MAX_SECTIONS = 500
_LEGEND = ("added", "removed", "changed", "moved", "kept")


def render_page(diff: Comparison) -> str:
    """The whole document."""
    style, script = page_asset("page.css"), page_asset("page.js")
    sections = hunk_sections(diff) or [element("p", {"class": "equal"}, "The graphs are equal.")]
    return document(
        "Graph diff",
        style,
        summary_section(diff),
        toolbar() if diff.groups else Markup(""),
        element("main", None, *sections, kept_section(diff)),
        script=script,
    )


def notebook_frame(page: str) -> str:
    """`page` in a sandboxed frame, which shares neither style nor origin with what is around it."""
    return (
        f'<iframe title="Graph diff" sandbox="allow-scripts" srcdoc="{escape(page)}" '
        'style="width: 100%; height: 640px; border: 0; border-radius: 6px; resize: vertical"></iframe>'
    )


def hunk_sections(diff: Comparison, *, unfolded: bool = True) -> list[Markup]:
    """The hunks within the page's budgets; ``unfolded``: whether the largest is open, or all of few."""
    drawable, lines = _MAX_DRAWN_NODES, _MAX_LINES
    largest = max(diff.groups, key=lambda group: len(group.hunks) * len(group.shown.members), default=None)
    sections = []
    for group in diff.groups[:_MAX_SECTIONS]:
        size = len(group.shown.members) + len(group.shown.context)
        drawn = size <= min(drawable, _MAX_DRAWN_NODES_OF_HUNK)
        max_lines = min(lines, _MAX_LINES_OF_HUNK)
        is_open = unfolded and (group is largest or len(diff.groups) <= 3)
        sections.append(group_section(diff, group, drawn=drawn, max_lines=max_lines, unfolded=is_open))
        drawable -= size if drawn else 0
        lines -= min(max_lines, size)
    if len(diff.groups) > _MAX_SECTIONS:
        rest = len(diff.groups) - _MAX_SECTIONS
        sections.append(element("p", {"class": "equal"}, f"{rest:,} more hunks in to_text()."))
    return sections


def toolbar() -> Markup:
    """Search, and what the colours mean."""
    search = {
        "type": "search",
        "id": "search",
        "placeholder": "Search nodes, modules, shapes, source lines",
        "aria-label": "Search nodes, modules, shapes, source lines",
        "autocomplete": "off",
        "spellcheck": "false",
    }
    return element(
        "div",
        {"class": "toolbar"},
        element("input", search),
        element("output", {"id": "found", "for": "search"}),
        element("button", {"type": "button", "id": "unfold"}, "Unfold all"),
        element("button", {"type": "button", "id": "fold"}, "Fold all"),
        element(
            "ul", {"class": "legend"}, *(element("li", {"class": f"key {kind}"}, kind) for kind in _LEGEND)
        ),
    )


def page_asset(name: str) -> Markup:
    """A style sheet or a script of the pages."""
    return Markup(files("oproj_pass.passes.diff").joinpath(name).read_bytes().decode("utf-8"))
