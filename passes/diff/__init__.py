"""What a pass did to a graph: matched nodes, folded hunks, as text, as a page, as data."""

from oproj_pass.passes.diff.graph_diff import GraphDiff, diff_graphs
from oproj_pass.passes.diff.record import snapshot
from oproj_pass.passes.diff.side_by_side import SideBySide, compare_states
from oproj_pass.passes.diff.snapshot import GraphSnapshot

__all__ = ["GraphDiff", "GraphSnapshot", "SideBySide", "compare_states", "diff_graphs", "snapshot"]
