"""Follows every node through a sequence of graphs: the matches of neighbouring graphs, end to end.

Groups what any step touched by its block of the model (`layers.7`), equal blocks into one. Draws nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from oproj_pass.passes.diff.changes import Kind, NodeChange
from oproj_pass.passes.diff.comparison import Comparison
from oproj_pass.passes.diff.graph_snapshot import NodeSnapshot
from oproj_pass.passes.diff.hunks import block_of, general_constants, general_target
from oproj_pass.passes.diff.labels import print_constants
from oproj_pass.passes.diff.origin import generalise_path

__all__ = ["Track", "TrackGroup", "fold_tracks", "follow_nodes"]


@dataclass(eq=False)
class Track:
    """One node in every state of a graph.

    `nodes`: the node in each state, None where it is not there. `changes`: what each step did to it, None
    where it is on neither side. `block`: where a step touched it first; empty if none did, or outside all
    modules.
    """

    nodes: list[NodeSnapshot | None] = field(default_factory=list)
    changes: list[NodeChange | None] = field(default_factory=list)
    block: str = ""

    @property
    def is_touched(self) -> bool:
        """Whether any step did anything to it."""
        return any(change is not None and change.kind is not Kind.KEPT for change in self.changes)

    @property
    def node(self) -> NodeSnapshot:
        """The node as it was last."""
        return next(node for node in reversed(self.nodes) if node is not None)


@dataclass(frozen=True)
class TrackGroup:
    """The touched nodes of one block; `blocks` names it, and those that differ in nothing but their index."""

    blocks: tuple[str, ...]
    tracks: tuple[Track, ...]


def follow_nodes(diffs: Sequence[Comparison]) -> list[Track]:
    """Every node of every state once; each diff's `before` is the `after` of the one in front of it.

    In the order of the graphs: what a step adds comes behind what it comes behind there.
    """
    tracks = [Track([node]) for node in diffs[0].before.nodes]
    for step, diff in enumerate(diffs):
        tracks = _one_step_further(tracks, step, diff)
    return tracks


def fold_tracks(tracks: Iterable[Track]) -> list[TrackGroup]:
    """The touched tracks by block, equal blocks together, ordered by their first."""
    by_block: dict[str, list[Track]] = defaultdict(list)
    for track in tracks:
        if track.is_touched:
            by_block[track.block].append(track)
    groups: dict[object, list[str]] = defaultdict(list)
    for block, members in by_block.items():
        groups[generalise_path(block), tuple(map(_structure, members))].append(block)
    return [TrackGroup(tuple(blocks), tuple(by_block[blocks[0]])) for blocks in groups.values()]


def _one_step_further(tracks: list[Track], step: int, diff: Comparison) -> list[Track]:
    here = {node.name: track for track in tracks if (node := track.nodes[-1]) is not None}
    paths = {i: hunk.path for group in diff.groups for hunk in group.hunks for i in hunk.members}
    added: dict[int | None, list[Track]] = defaultdict(list)  # behind the track of this id
    anchor: int | None = None
    for i, change in enumerate(diff.changes):
        if change.before is None:
            track = Track([None] * (step + 1), [None] * step)
            added[anchor].append(track)
        else:
            track = here[change.before.name]
            anchor = id(track)
        track.nodes.append(change.after)
        track.changes.append(change)
        track.block = track.block or block_of(paths.get(i, ""))
    for track in tracks:
        if len(track.changes) == step:  # an earlier step removed it
            track.nodes.append(None)
            track.changes.append(None)
    return list(_in_order(tracks, added))


def _in_order(tracks: Iterable[Track], added: dict[int | None, list[Track]]) -> Iterator[Track]:
    yield from added.get(None, ())
    for track in tracks:
        yield track
        yield from added.get(id(track), ())


def _structure(track: Track) -> object:
    """What two tracks must share to be equal: all but names and layer indices."""
    steps = (None if change is None else (change.kind, change.fields) for change in track.changes)
    return tuple(steps), tuple(None if node is None else _general(node) for node in track.nodes)


def _general(node: NodeSnapshot) -> object:
    constants = general_constants(print_constants(node))
    return node.op, general_target(node), constants, node.shape, node.dtype, generalise_path(node.path)
