"""The diff of two graphs: what `diff_graphs` returns, and its four printed forms.

Decides how the parts fit together; matching, comparing, grouping and printing are each in their own file.
"""

import networkx as nx
import torch.fx

from oproj_pass.passes.diff.changes import NodeChange, list_changes
from oproj_pass.passes.diff.comparison import Comparison
from oproj_pass.passes.diff.cost import Timer
from oproj_pass.passes.diff.graph_snapshot import GraphSnapshot
from oproj_pass.passes.diff.html import notebook_frame, render_page
from oproj_pass.passes.diff.hunks import fold_hunks, list_hunks
from oproj_pass.passes.diff.match import match_nodes
from oproj_pass.passes.diff.record import as_snapshot
from oproj_pass.passes.diff.text import print_diff
from oproj_pass.passes.diff.traffic import payload

__all__ = ["GraphDiff", "diff_graphs"]


class GraphDiff(Comparison):
    """What differs between two graphs, in its four printed forms."""

    def to_text(self) -> str:
        """The diff in the manner of `diff -u`."""
        return print_diff(self)

    def to_html(self) -> str:
        """One self-contained page, which loads nothing and sends nothing."""
        return render_page(self)

    def to_networkx(self) -> "nx.DiGraph[str]":
        """Both graphs as one.

        A node goes by its name in `after`, and by `-name` if it was removed; `kind`, `op`, `target`,
        `path`, `source`, `shape`, `dtype`, `shape_before`, `dtype_before`, `fields` and `payload` describe
        it. An edge has the `kind`, `shape` and `dtype` of the value it carries.
        """
        names = [c.node.name if c.after is not None else f"-{c.node.name}" for c in self.changes]
        graph: nx.DiGraph[str] = nx.DiGraph()
        for name, change in zip(names, self.changes, strict=True):
            node, old = change.node, change.before
            graph.add_node(
                name,
                kind=change.kind.value,
                op=node.op,
                target=node.target,
                path=change.path,
                source=node.source,
                shape=node.shape,
                dtype=node.dtype,
                shape_before=old.shape if old else None,
                dtype_before=old.dtype if old else None,
                fields=change.fields,
                payload=payload(node, self.graph_of(change)),
            )
        for source, user in self.merged.edges:
            value, kind = self.changes[source].node, self.merged.edges[source, user]["kind"]
            graph.add_edge(names[source], names[user], kind=kind, shape=value.shape, dtype=value.dtype)
        return graph

    def _repr_html_(self) -> str:
        """The page in a frame of its own, so that it and the notebook cannot restyle each other."""
        return notebook_frame(self.to_html())


def diff_graphs(
    before: torch.fx.GraphModule | torch.fx.Graph | GraphSnapshot,
    after: torch.fx.GraphModule | torch.fx.Graph | GraphSnapshot,
    *,
    timer: Timer | None = None,
) -> GraphDiff:
    """Compare two graphs; take `snapshot(gm)` first where the same graph is rewritten in place.

    `timer`: predicts the time of nodes (see `oproj_pass.advisor.node_times`).

    Raises `ConfigError` if either is no graph.
    """
    old, new = as_snapshot(before, "before"), as_snapshot(after, "after")
    changes = list_changes(old, new, match_nodes(old, new))
    merged = _merge(changes)
    groups = fold_hunks(list_hunks(changes, merged), changes)
    return GraphDiff(old, new, tuple(changes), merged, tuple(groups), timer)


def _merge(changes: list[NodeChange]) -> "nx.DiGraph[int]":
    place_before = {change.before.name: i for i, change in enumerate(changes) if change.before}
    place_after = {change.after.name: i for i, change in enumerate(changes) if change.after}
    merged: nx.DiGraph[int] = nx.DiGraph()
    merged.add_nodes_from(range(len(changes)))
    for i, change in enumerate(changes):
        was = {place_before[name] for name in change.before.inputs} if change.before else set()
        now = {place_after[name] for name in change.after.inputs} if change.after else set()
        merged.add_edges_from(((source, i) for source in sorted(was & now)), kind="kept")
        merged.add_edges_from(((source, i) for source in sorted(was - now)), kind="removed")
        merged.add_edges_from(((source, i) for source in sorted(now - was)), kind="added")
    return merged
