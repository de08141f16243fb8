"""Groups changed nodes into hunks, one for each place in the model, and equal hunks into one.

A hunk is a connected set of changed nodes inside one block (`layers.7`), with the nodes next to it as
context. Two hunks are equal when they differ in nothing but names and layer indices. Draws nothing.
"""

import re
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx

from oproj_pass.passes.diff.changes import Kind, NodeChange
from oproj_pass.passes.diff.graph_snapshot import NodeSnapshot, Ref
from oproj_pass.passes.diff.origin import common_path, generalise_path

__all__ = [
    "Hunk",
    "HunkGroup",
    "block_of",
    "fold_hunks",
    "general_constants",
    "general_target",
    "list_hunks",
]

_MAX_CONTEXT_USERS = 4
_INDEX = re.compile(r"(?<=[A-Za-z_\]])\.\d+(?=\.)")  # a layer index inside a dotted name, not a decimal


@dataclass(frozen=True)
class Hunk:
    """Changes that belong together. `members` and `context` index the diff's changes, in order."""

    path: str
    members: tuple[int, ...]
    context: tuple[int, ...]


@dataclass(frozen=True)
class HunkGroup:
    """Equal hunks; the first stands for all."""

    hunks: tuple[Hunk, ...]

    @property
    def shown(self) -> Hunk:
        """The hunk to show."""
        return self.hunks[0]

    @property
    def paths(self) -> list[str]:
        """Module paths of all hunks, in graph order."""
        return [hunk.path for hunk in self.hunks]


def list_hunks(changes: list[NodeChange], merged: "nx.DiGraph[int]") -> list[Hunk]:
    """Hunks of `changes`, in graph order; `merged` has an edge for each data dependency of either graph."""
    changed = [i for i, change in enumerate(changes) if change.kind is not Kind.KEPT]
    # A rewired node is where a change arrives: what reads it in turn is another place.
    links: nx.Graph[int] = nx.Graph()
    links.add_nodes_from(changed)
    links.add_edges_from(edge for edge in merged.subgraph(changed).edges if not changes[edge[0]].is_rewired)
    blocks = _assign_blocks(changes, links)
    links.remove_edges_from([(a, b) for a, b in links.edges if blocks[a] != blocks[b]])
    hunks = []
    for component in nx.connected_components(links):
        members = tuple(sorted(component))
        hunks.append(Hunk(_hunk_path(changes, members), members, _context(members, merged)))
    return sorted(hunks, key=lambda hunk: hunk.members)


def fold_hunks(hunks: list[Hunk], changes: list[NodeChange]) -> list[HunkGroup]:
    """Equal hunks together, ordered by their first."""
    values = {(side, node.name): node for change in changes for side, node in _sides(change)}
    groups: dict[object, list[Hunk]] = defaultdict(list)
    for hunk in hunks:
        groups[_structure(hunk, changes, values)].append(hunk)
    return [HunkGroup(tuple(group)) for group in groups.values()]


def _assign_blocks(changes: list[NodeChange], links: "nx.Graph[int]") -> dict[int, str]:
    """The block of each changed node; one with no module path takes the block of the nearest that has."""
    blocks = {i: block_of(changes[i].path) for i in links if changes[i].path}
    queue = deque(sorted(blocks))
    while queue:
        i = queue.popleft()
        for neighbour in sorted(links[i]):
            if neighbour not in blocks:
                blocks[neighbour] = blocks[i]
                queue.append(neighbour)
    return {i: blocks.get(i, "") for i in links}


def block_of(path: str) -> str:
    """`path` up to its first index: `layers.7` of `layers.7.attn.o_proj`."""
    parts = path.split(".")
    index = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts))
    return ".".join(parts[: index + 1])


def _hunk_path(changes: list[NodeChange], members: tuple[int, ...]) -> str:
    made = [changes[i].path for i in members if not changes[i].is_rewired]
    return common_path(made) or common_path(changes[i].path for i in members)


def _context(members: tuple[int, ...], merged: "nx.DiGraph[int]") -> tuple[int, ...]:
    inside = set(members)
    around: set[int] = set()
    for i in members:
        around.update(merged.predecessors(i))
        around.update(
            [user for user in sorted(merged.successors(i)) if user not in inside][:_MAX_CONTEXT_USERS]
        )
    return tuple(sorted(around - inside))


def _structure(hunk: Hunk, changes: list[NodeChange], values: dict[tuple[str, str], NodeSnapshot]) -> object:
    """What two hunks must share to be equal."""
    local: dict[tuple[str, str], int] = {}
    for number, i in enumerate(hunk.members):
        for side, node in _sides(changes[i]):
            local[side, node.name] = number
    nodes = tuple(
        (changes[i].kind, changes[i].fields, side, _general_node(side, node, local, values))
        for i in hunk.members
        for side, node in _sides(changes[i])
    )
    return generalise_path(hunk.path), nodes


def _sides(change: NodeChange) -> Iterator[tuple[str, NodeSnapshot]]:
    if change.before is not None:
        yield "before", change.before
    if change.after is not None:
        yield "after", change.after


def _general_node(
    side: str,
    node: NodeSnapshot,
    local: dict[tuple[str, str], int],
    values: dict[tuple[str, str], NodeSnapshot],
) -> object:
    args = tuple(
        _general_ref(side, part, local, values) if isinstance(part, Ref) else general_constants(part)
        for part in node.args
    )
    return node.op, general_target(node), args, node.shape, node.dtype, generalise_path(node.path)


def general_target(node: NodeSnapshot) -> str:
    """The node's target, equal for equal layers."""
    return re.sub(r"\d+", "*", node.target) if node.is_input else general_constants(node.target)


def general_constants(text: str) -> str:
    """Printed arguments without the layer index of a dotted name in them."""
    return _INDEX.sub(".*", text)


def _general_ref(
    side: str, ref: Ref, local: dict[tuple[str, str], int], values: dict[tuple[str, str], NodeSnapshot]
) -> object:
    if (side, ref.name) in local:
        return local[side, ref.name]
    value = values[side, ref.name]
    return value.shape, value.dtype
