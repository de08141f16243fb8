"""Several passes side by side: every state of one graph, and each node followed through all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from oproj_pass.errors import ConfigError
from oproj_pass.passes.diff.columns import print_columns
from oproj_pass.passes.diff.columns_page import render_columns
from oproj_pass.passes.diff.cost import Timer
from oproj_pass.passes.diff.graph_diff import GraphDiff, diff_graphs
from oproj_pass.passes.diff.graph_snapshot import GraphSnapshot
from oproj_pass.passes.diff.html import notebook_frame
from oproj_pass.passes.diff.tracks import Track, TrackGroup, fold_tracks, follow_nodes

__all__ = ["SideBySide", "compare_states"]


@dataclass(frozen=True, repr=False)
class SideBySide:
    """What each of several steps did to a graph. `names`: of the states, one more than there are `diffs`."""

    names: tuple[str, ...]
    diffs: tuple[GraphDiff, ...]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({' -> '.join(self.names)})"

    @cached_property
    def tracks(self) -> list[Track]:
        """Every node of every state, followed through all of them."""
        return follow_nodes(self.diffs)

    @cached_property
    def groups(self) -> list[TrackGroup]:
        """The nodes that any step touched, by block of the model, equal blocks as one."""
        return fold_tracks(self.tracks)

    def summary(self) -> dict[str, Any]:
        """Counts and costs of each step, by the names of its states (see `GraphDiff.summary`)."""
        steps = zip(pairwise(self.names), self.diffs, strict=True)
        return {"steps": [{"from": old, "to": new, **diff.summary()} for (old, new), diff in steps]}

    def to_text(self) -> str:
        """A column a state, a line a node that any step touched; equal layers once."""
        return print_columns(self.names, self.diffs, self.groups)

    def to_html(self) -> str:
        """One self-contained page: the columns, then each step's own drawings."""
        return render_columns(self.names, self.diffs, self.groups)

    def _repr_html_(self) -> str:
        return notebook_frame(self.to_html())


def compare_states(
    states: Sequence[GraphSnapshot], names: Sequence[str], *, timer: Timer | None = None
) -> SideBySide:
    """Compare each state of a graph with the next; ``names``: what each is called.

    `timer`: predicts the time of nodes (see `diff_graphs`). Raises `ConfigError` for fewer than two states,
    or a number of names that is another.
    """
    if len(states) < 2 or len(states) != len(names):
        raise ConfigError(
            f"{len(states)} states and {len(names)} names, required: at least two states, each with a name"
        )
    diffs = tuple(diff_graphs(before, after, timer=timer) for before, after in pairwise(states))
    return SideBySide(tuple(names), diffs)
