"""Prints a diff like `diff -u`: one block a hunk group, with `-`, `+`, `>` (moved) and context lines.

Decides wording and order only; every node is one line, so no name can forge another.
"""

from collections.abc import Iterator

from oproj_pass.passes.diff.changes import Kind
from oproj_pass.passes.diff.comparison import Comparison
from oproj_pass.passes.diff.graph_snapshot import GraphSnapshot, NodeSnapshot
from oproj_pass.passes.diff.hunks import HunkGroup
from oproj_pass.passes.diff.labels import fold_paths, print_node, printable
from oproj_pass.passes.diff.traffic import payload

__all__ = ["group_title", "hunk_lines", "print_diff"]

_SIGN = {Kind.KEPT: " ", Kind.ADDED: "+", Kind.REMOVED: "-", Kind.MOVED: ">"}


def print_diff(diff: Comparison) -> str:
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


def hunk_lines(diff: Comparison, group: HunkGroup) -> Iterator[tuple[str, str]]:
    """Sign and text of every line of the shown hunk, in graph order."""
    members = set(group.shown.members)
    for i in sorted((*members, *group.shown.context)):
        change = diff.changes[i]
        # Another hunk's change is only context in this one.
        if i in members and change.kind is Kind.CHANGED and change.before and change.after:
            yield "-", _line(diff, change.before, diff.before)
            yield "+", _line(diff, change.after, diff.after, change.fields)
        else:
            sign = _SIGN[change.kind] if i in members else " "
            yield sign, _line(diff, change.node, diff.graph_of(change))


def _short_source(source: str) -> str:
    """`llama/modeling_llama.py:270`: the file and its folder, which is enough to find it."""
    return "/".join(source.split("/")[-2:])


def _line(diff: Comparison, node: NodeSnapshot, graph: GraphSnapshot, fields: tuple[str, ...] = ()) -> str:
    size, time = payload(node, graph), diff.time_of(node, graph)
    notes = [
        f"changed: {', '.join(fields)}" if fields else "",
        f"moves {size}" if size else "",
        f"predicted {time:.1f} us" if time is not None else "",
        " at ".join(part for part in (node.path, _short_source(node.source)) if part),
    ]
    comment = "; ".join(note for note in notes if note)
    return print_node(node) + (f"  # {printable(comment)}" if comment else "")
