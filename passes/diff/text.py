"""Prints a diff like `diff -u`: one block a hunk group, with `-`, `+`, `>` (moved) and context lines.

Decides wording and order only; every node is one line, so no name can forge another.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from oproj_pass.passes.diff.changes import Kind
from oproj_pass.passes.diff.hunks import HunkGroup
from oproj_pass.passes.diff.labels import fold_paths, print_node, printable
from oproj_pass.passes.diff.snapshot import GraphSnapshot, NodeSnapshot
from oproj_pass.passes.diff.traffic import payload

if TYPE_CHECKING:
    from oproj_pass.passes.diff.graph_diff import GraphDiff

__all__ = ["group_title", "hunk_lines", "print_diff"]

_SIGN = {Kind.KEPT: " ", Kind.ADDED: "+", Kind.REMOVED: "-", Kind.MOVED: ">"}


def print_diff(diff: "GraphDiff") -> str:
    """The whole diff; one line that says so where the graphs are equal."""
    if not diff.groups:
        return f"no difference ({len(diff.after.nodes)} nodes)\n"
    lines = [f"--- before ({len(diff.before.nodes)} nodes)", f"+++ after ({len(diff.after.nodes)} nodes)"]
    for group in diff.groups:
        lines.append(f"@@ {group_title(group)} @@")
        if len(group.hunks) > 1:
            others = ", ".join(fold_paths(group.paths[1:]))
            lines.append(f"# {len(group.hunks) - 1} more like this: {printable(others)}")
        lines += [f"{sign} {line}" for sign, line in hunk_lines(diff, group)]
    return "\n".join(lines) + "\n"


def group_title(group: HunkGroup) -> str:
    """Where the shown hunk is."""
    return printable(group.shown.path) or "no module path"


def hunk_lines(diff: "GraphDiff", group: HunkGroup) -> Iterator[tuple[str, str]]:
    """Sign and text of every line of the shown hunk, in graph order."""
    members = set(group.shown.members)
    for i in sorted((*members, *group.shown.context)):
        change = diff.changes[i]
        # Another hunk's change is only context in this one.
        if i in members and change.kind is Kind.CHANGED and change.before and change.after:
            yield "-", _line(change.before, diff.before)
            yield "+", _line(change.after, diff.after, change.fields)
        else:
            sign = _SIGN[change.kind] if i in members else " "
            yield sign, _line(change.node, diff.graph_of(change))


def _line(node: NodeSnapshot, graph: GraphSnapshot, fields: tuple[str, ...] = ()) -> str:
    size = payload(node, graph)
    notes = [
        f"changed: {', '.join(fields)}" if fields else "",
        f"moves {size}" if size else "",
        " at ".join(part for part in (node.path, node.source) if part),
    ]
    comment = "; ".join(note for note in notes if note)
    return print_node(node) + (f"  # {printable(comment)}" if comment else "")
