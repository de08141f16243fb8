"""What a pass did to a graph: matched nodes, folded hunks, as text, as a page, as data.

Names load on first use, for labels and documents are used where no graph is compared.
"""

from typing import TYPE_CHECKING

from oproj_pass.first_use import names_on_first_use

if TYPE_CHECKING:
    from oproj_pass.passes.diff.graph_diff import GraphDiff, diff_graphs
    from oproj_pass.passes.diff.graph_snapshot import GraphSnapshot
    from oproj_pass.passes.diff.record import snapshot
    from oproj_pass.passes.diff.side_by_side import SideBySide, compare_states

_MODULES = {
    "GraphDiff": "graph_diff",
    "GraphSnapshot": "graph_snapshot",
    "SideBySide": "side_by_side",
    "compare_states": "side_by_side",
    "diff_graphs": "graph_diff",
    "snapshot": "record",
}

__all__ = ["GraphDiff", "GraphSnapshot", "SideBySide", "compare_states", "diff_graphs", "snapshot"]

__getattr__, __dir__ = names_on_first_use(__name__, _MODULES)
