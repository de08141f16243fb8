"""The nodes that no hunk shows, as a list to search in: a page that says "nothing" of them would be wrong."""

import re
from itertools import groupby

from oproj_pass.passes.diff.changes import Kind, NodeChange
from oproj_pass.passes.diff.comparison import Comparison
from oproj_pass.passes.diff.labels import fold_paths, printable, short_name, shorten
from oproj_pass.passes.diff.markup import Markup, element

__all__ = ["kept_section"]

_MAX_ROWS = 500
_MAX_NAMES = 2000  # characters


def kept_section(diff: Comparison) -> Markup:
    """One folded list: per operation and place, equal layers together, the names of the kept nodes."""
    kept = [change for change in diff.changes if change.kind is Kind.KEPT]
    rows = [_row(list(group)) for _, group in groupby(sorted(kept, key=_place), _place)]
    if not rows or not diff.groups:
        return Markup("")
    if len(rows) > _MAX_ROWS:
        rows[_MAX_ROWS:] = [element("li", None, f"… {len(rows) - _MAX_ROWS:,} more")]
    return element(
        "details",
        {"class": "more rest"},
        element("summary", None, f"{len(kept):,} nodes kept as they were"),
        element("ul", None, *rows),
    )


def _place(change: NodeChange) -> tuple[str, str]:
    return re.sub(r"\d+", "#", change.path), re.sub(r"\d+", "#", change.node.target)


def _row(changes: list[NodeChange]) -> Markup:
    paths = fold_paths(list(dict.fromkeys(change.path for change in changes)))
    names = shorten(", ".join(change.node.name for change in changes), _MAX_NAMES)
    where = shorten(printable(", ".join(filter(None, paths))), 200) or "no module path"
    return element("li", None, f"{where}: {short_name(changes[0].node)} ({printable(names)})")
