"""Everything that reads or rewrites an FX graph.

Names load on first use: what a report is made of needs no torch, and explaining none of the rewriting.
"""

from typing import TYPE_CHECKING

from oproj_pass.first_use import names_on_first_use

if TYPE_CHECKING:
    from oproj_pass.passes.ascend import WeightShard, npu_pass
    from oproj_pass.passes.ascend.mc2 import FuseMatmulReduceScatter
    from oproj_pass.passes.context_parallel import (
        ContextGroup,
        ContextParallel,
        ContextRecord,
        SplitAttention,
    )
    from oproj_pass.passes.contract import GraphPass, NearMiss, PassRecord
    from oproj_pass.passes.diff import (
        GraphDiff,
        GraphSnapshot,
        SideBySide,
        compare_states,
        diff_graphs,
        snapshot,
    )
    from oproj_pass.passes.gemm.axes import Axis, StoredAxis, TensorAxis, shard_of
    from oproj_pass.passes.graph_fingerprint import Fingerprint, fingerprint
    from oproj_pass.passes.history import HistoryStep, PassHistory
    from oproj_pass.passes.overlap.chunks import ChunksInFlight
    from oproj_pass.passes.overlap.order import RequireStreamOrder
    from oproj_pass.passes.overlap.side_stream import OverlapExchange
    from oproj_pass.passes.redundant_collectives import OwnPart, RedundantCollectives
    from oproj_pass.passes.runner import run_passes
    from oproj_pass.passes.shard import ShardOProj, ShardPlan, ShardRecord
    from oproj_pass.passes.sites.attention_output import find_projections
    from oproj_pass.passes.sites.embedding import Lookup
    from oproj_pass.passes.sites.globs import Globs
    from oproj_pass.passes.sites.grouped import Grouped
    from oproj_pass.passes.sites.mlp import Mlp
    from oproj_pass.passes.sites.projection import Projection
    from oproj_pass.passes.sites.roles import ROLES, Role, find_roles, strategy_names
    from oproj_pass.passes.sites.site import Site
    from oproj_pass.passes.strategies import STRATEGIES, Strategy
    from oproj_pass.passes.strategies.assignment import Assignment
    from oproj_pass.passes.strategies.exchange import Exchange
    from oproj_pass.passes.strategies.region import ShardedRegion

_MODULES = {
    "ROLES": "sites.roles",
    "STRATEGIES": "strategies",
    "Assignment": "strategies.assignment",
    "Axis": "gemm.axes",
    "ChunksInFlight": "overlap.chunks",
    "ContextGroup": "context_parallel",
    "ContextParallel": "context_parallel",
    "ContextRecord": "context_parallel",
    "Exchange": "strategies.exchange",
    "Fingerprint": "graph_fingerprint",
    "FuseMatmulReduceScatter": "ascend.mc2",
    "Globs": "sites.globs",
    "GraphDiff": "diff",
    "GraphPass": "contract",
    "GraphSnapshot": "diff",
    "Grouped": "sites.grouped",
    "HistoryStep": "history",
    "Lookup": "sites.embedding",
    "Mlp": "sites.mlp",
    "NearMiss": "contract",
    "OverlapExchange": "overlap.side_stream",
    "OwnPart": "redundant_collectives",
    "PassHistory": "history",
    "PassRecord": "contract",
    "Projection": "sites.projection",
    "RedundantCollectives": "redundant_collectives",
    "RequireStreamOrder": "overlap.order",
    "Role": "sites.roles",
    "ShardOProj": "shard",
    "ShardPlan": "shard",
    "ShardRecord": "shard",
    "ShardedRegion": "strategies.region",
    "SideBySide": "diff",
    "Site": "sites.site",
    "SplitAttention": "context_parallel",
    "StoredAxis": "gemm.axes",
    "Strategy": "strategies",
    "TensorAxis": "gemm.axes",
    "WeightShard": "ascend",
    "compare_states": "diff",
    "diff_graphs": "diff",
    "find_projections": "sites.attention_output",
    "find_roles": "sites.roles",
    "fingerprint": "graph_fingerprint",
    "npu_pass": "ascend",
    "run_passes": "runner",
    "shard_of": "gemm.axes",
    "snapshot": "diff",
    "strategy_names": "sites.roles",
}

__all__ = [
    "ROLES",
    "STRATEGIES",
    "Assignment",
    "Axis",
    "ChunksInFlight",
    "ContextGroup",
    "ContextParallel",
    "ContextRecord",
    "Exchange",
    "Fingerprint",
    "FuseMatmulReduceScatter",
    "Globs",
    "GraphDiff",
    "GraphPass",
    "GraphSnapshot",
    "Grouped",
    "HistoryStep",
    "Lookup",
    "Mlp",
    "NearMiss",
    "OverlapExchange",
    "OwnPart",
    "PassHistory",
    "PassRecord",
    "Projection",
    "RedundantCollectives",
    "RequireStreamOrder",
    "Role",
    "ShardOProj",
    "ShardPlan",
    "ShardRecord",
    "ShardedRegion",
    "SideBySide",
    "Site",
    "SplitAttention",
    "StoredAxis",
    "Strategy",
    "TensorAxis",
    "WeightShard",
    "compare_states",
    "diff_graphs",
    "find_projections",
    "find_roles",
    "fingerprint",
    "npu_pass",
    "run_passes",
    "shard_of",
    "snapshot",
    "strategy_names",
]

__getattr__, __dir__ = names_on_first_use(__name__, _MODULES)
