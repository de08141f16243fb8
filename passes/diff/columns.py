"""Prints nodes that were followed through several states: a column a state, a line a node.

Decides the wording that text and page share.
"""

from collections.abc import Iterator, Sequence

from oproj_pass.passes.diff.changes import Kind, NodeChange
from oproj_pass.passes.diff.comparison import Comparison
from oproj_pass.passes.diff.labels import fold_paths, format_value, printable, short_name, shorten
from oproj_pass.passes.diff.tracks import Track, TrackGroup
from oproj_pass.passes.diff.traffic import payload

__all__ = ["cells", "print_columns", "title_of", "track_name"]

_SIGN = {Kind.KEPT: "  ", Kind.ADDED: "+ ", Kind.REMOVED: "- ", Kind.CHANGED: "~ ", Kind.MOVED: "> "}
_MAX_NAME, _MAX_CELL, _MAX_LINES = 60, 48, 400


def print_columns(names: Sequence[str], diffs: Sequence[Comparison], groups: Sequence[TrackGroup]) -> str:
    """All groups as aligned columns; a line is cut where a mark says so."""
    if not groups:
        return f"no difference between {', '.join(map(printable, names))}\n"
    lines = []
    for group in groups:
        lines.append(f"@@ {title_of(group)} @@")
        if len(group.blocks) > 1:
            others = ", ".join(fold_paths(list(group.blocks[1:])))
            lines.append(f"# {len(group.blocks) - 1} more like this: {printable(others)}")
        lines += _aligned([("", *(f"  {printable(name)}" for name in names)), *_rows(diffs, group)])
    return "\n".join(lines) + "\n"


def title_of(group: TrackGroup) -> str:
    """Where the shown block is."""
    return printable(group.blocks[0]) or "no module path"


def track_name(track: Track, block: str) -> str:
    """What the node is called last; an input of the block without the block's path."""
    return short_name(track.node).removeprefix(f"{block}.")


def cells(track: Track, diffs: Sequence[Comparison]) -> Iterator[tuple[Kind | None, str]]:
    """For each state what the step before it did to the node, and what the node is there.

    ``bf16[7168, 2048]``, with the bytes of a collective; of a changed one what else differs from before.
    """
    for node, change, graph in zip(
        track.nodes,
        (None, *track.changes),
        (diffs[0].before, *(diff.after for diff in diffs)),
        strict=True,
    ):
        kind = None if change is None else change.kind
        if node is None:
            yield kind, ""
            continue
        moved = payload(node, graph)
        parts = (format_value(node), f"moves {moved}" if moved else "", _differs(change))
        yield kind, " ".join(part for part in parts if part)


def _differs(change: NodeChange | None) -> str:
    """What a value does not show of a change: `(inputs)`, `(target: mm)`."""
    if change is None:
        return ""
    shown = [field for field in change.fields if field not in ("shape", "dtype")]
    words = [f"target: {short_name(change.node)}" if field == "target" else field for field in shown]
    return f"({', '.join(words)})" if words else ""


def _rows(diffs: Sequence[Comparison], group: TrackGroup) -> Iterator[tuple[str, ...]]:
    for track in group.tracks[:_MAX_LINES]:
        shown = (f"{_SIGN[kind or Kind.KEPT]}{text}" for kind, text in cells(track, diffs))
        yield track_name(track, group.blocks[0]), *(printable(text) for text in shown)
    if len(group.tracks) > _MAX_LINES:
        yield (f"… {len(group.tracks) - _MAX_LINES:,} more nodes", *("" for _ in range(len(diffs) + 1)))


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    limits = (_MAX_NAME, *(_MAX_CELL for _ in rows[0][1:]))
    cut = [[shorten(cell, limit) for cell, limit in zip(row, limits, strict=True)] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cut, strict=True)]
    for row in cut:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
