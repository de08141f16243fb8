"""Decides what happened to each node: kept, added, removed, changed or moved.

Compares matched pairs field by field and puts the nodes of both graphs in one order. Leaves grouping to
`hunks` and wording to `text` and `html`.
"""

from bisect import bisect_left
from dataclasses import dataclass
from enum import Enum

from oproj_pass.passes.diff.graph_snapshot import GraphSnapshot, NodeSnapshot, Ref

__all__ = ["Kind", "NodeChange", "list_changes"]


class Kind(str, Enum):
    """What happened to a node. A node that changed and moved counts as changed."""

    KEPT = "kept"
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    MOVED = "moved"


@dataclass(frozen=True)
class NodeChange:
    """One node of the two graphs together.

    `before` is None for an added node, `after` for a removed one. `fields` names what differs in a changed
    one: `target`, `inputs` (it reads other nodes), `args` (other constants), `shape`, `dtype`, `path`.
    """

    kind: Kind
    before: NodeSnapshot | None
    after: NodeSnapshot | None
    fields: tuple[str, ...] = ()

    @property
    def node(self) -> NodeSnapshot:
        """The node as it is now; as it was, if it was removed."""
        node = self.after or self.before
        assert node is not None
        return node

    @property
    def path(self) -> str:
        """Module path, from the side that knows it."""
        return self.node.path or (self.before.path if self.before else "")

    @property
    def is_rewired(self) -> bool:
        """Whether all that changed is which nodes it reads."""
        return self.fields == ("inputs",)


def list_changes(before: GraphSnapshot, after: GraphSnapshot, matching: dict[str, str]) -> list[NodeChange]:
    """Every node of both graphs once, in the order of `after`, removed ones where they used to be."""
    origin = {name: before.by_name[match] for match, name in matching.items()}
    in_place = _in_place(before, after, matching)
    removed = _removed_after(before, matching, in_place)
    changes = [NodeChange(Kind.REMOVED, node, None) for node in removed[None]]
    for node in after.nodes:
        source = origin.get(node.name)
        if source is None:
            changes.append(NodeChange(Kind.ADDED, None, node))
            continue
        changes.append(_compare(source, node, matching, moved=source.name not in in_place))
        changes += [NodeChange(Kind.REMOVED, gone, None) for gone in removed.get(source.name, ())]
    return changes


def _compare(old: NodeSnapshot, new: NodeSnapshot, matching: dict[str, str], *, moved: bool) -> NodeChange:
    def constants(node: NodeSnapshot) -> list[str]:
        return [part for part in node.args if not isinstance(part, Ref)]

    differs = {
        "target": (old.op, old.target) != (new.op, new.target),
        "inputs": [matching.get(name) for name in old.inputs] != new.inputs,
        "args": constants(old) != constants(new),
        "shape": old.shape != new.shape,
        "dtype": old.dtype != new.dtype,
        # An input's path is derived from its users, and an inserted node may come without one.
        "path": bool(old.path and new.path) and old.path != new.path and not new.is_input,
    }
    fields = tuple(name for name, differ in differs.items() if differ)
    kind = Kind.CHANGED if fields else Kind.MOVED if moved else Kind.KEPT
    return NodeChange(kind, old, new, fields)


def _in_place(before: GraphSnapshot, after: GraphSnapshot, matching: dict[str, str]) -> set[str]:
    """Names in `before` of the largest set of matched nodes whose order is the same in both graphs."""
    place = {node.name: i for i, node in enumerate(after.nodes)}
    names = [node.name for node in before.nodes if node.name in matching]
    ends: list[int] = []  # smallest last place of an increasing run, by its length
    last: list[int] = []  # which name that run ends with
    previous: list[int | None] = []
    for i, name in enumerate(names):
        position = place[matching[name]]
        length = bisect_left(ends, position)
        previous.append(last[length - 1] if length else None)
        ends[length : length + 1] = [position]
        last[length : length + 1] = [i]
    kept = set()
    step = last[-1] if last else None
    while step is not None:
        kept.add(names[step])
        step = previous[step]
    return kept


def _removed_after(
    before: GraphSnapshot, matching: dict[str, str], in_place: set[str]
) -> dict[str | None, list[NodeSnapshot]]:
    """Removed nodes by the in-place node they followed; None for the start of the graph."""
    removed: dict[str | None, list[NodeSnapshot]] = {None: []}
    anchor: str | None = None
    for node in before.nodes:
        if node.name not in matching:
            removed.setdefault(anchor, []).append(node)
        elif node.name in in_place:
            anchor = node.name
    return removed
