"""Two graphs compared: every node of both, in one order, and what happened to it. All renderers read this."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import networkx as nx

from oproj_pass.passes.diff.changes import Kind, NodeChange
from oproj_pass.passes.diff.cost import Timer, cost_of
from oproj_pass.passes.diff.graph_snapshot import GraphSnapshot, NodeSnapshot
from oproj_pass.passes.diff.hunks import HunkGroup
from oproj_pass.passes.diff.traffic import count_collectives

__all__ = ["Comparison"]


@dataclass(frozen=True, repr=False)
class Comparison:
    """What differs between two graphs.

    `changes` holds every node of both graphs, in order; `merged` has their indices as nodes and every data
    dependency as an edge whose `kind` is kept, added or removed; `groups` are the hunks, equal ones folded.
    `timer` predicts a node's time, where a machine is known.
    """

    before: GraphSnapshot
    after: GraphSnapshot
    changes: tuple[NodeChange, ...]
    merged: "nx.DiGraph[int]"
    groups: tuple[HunkGroup, ...]
    timer: Timer | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        counts = self.summary()
        kinds = ", ".join(f"{counts[kind.value]} {kind.value}" for kind in Kind)
        return f"{type(self).__name__}({kinds}; {counts['hunks']} hunks, {counts['distinct_hunks']} distinct)"

    def graph_of(self, change: NodeChange) -> GraphSnapshot:
        """The graph that `change.node` is a node of."""
        return self.after if change.after is not None else self.before

    def time_of(self, node: NodeSnapshot, graph: GraphSnapshot) -> float | None:
        """Predicted microseconds of a node of `graph`, None where nothing predicts it."""
        return None if self.timer is None else self.timer(node, graph)

    def summary(self) -> dict[str, Any]:
        """Counts and costs.

        Nodes of each graph, nodes by what happened to them, hunks and their places, calls of each collective,
        and what each graph costs in bytes and, with a timer, in microseconds.
        """
        kinds = Counter(change.kind for change in self.changes)
        before, after = count_collectives(self.before), count_collectives(self.after)
        return {
            "nodes": {"before": len(self.before.nodes), "after": len(self.after.nodes)},
            **{kind.value: kinds[kind] for kind in Kind},
            "hunks": sum(len(group.hunks) for group in self.groups),
            "distinct_hunks": len(self.groups),
            "paths": [path for group in self.groups for path in group.paths],
            "collectives": {
                name: {"before": before.get(name, 0), "after": after.get(name, 0)}
                for name in sorted({*before, *after})
            },
            "cost": {
                "before": cost_of(self.before, self.timer).to_dict(),
                "after": cost_of(self.after, self.timer).to_dict(),
            },
        }
