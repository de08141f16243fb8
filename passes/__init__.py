"""Everything that reads or rewrites an FX graph."""

from oproj_pass.torch_internals import require_internals

require_internals("oproj_pass.passes")

from oproj_pass.passes.ascend import WeightShard, npu_pass
from oproj_pass.passes.ascend.mc2 import FuseMatmulReduceScatter
from oproj_pass.passes.context_parallel import ContextGroup, ContextParallel, ContextRecord, SplitAttention
from oproj_pass.passes.contract import GraphPass, NearMiss, PassRecord
from oproj_pass.passes.diff import GraphDiff, GraphSnapshot, SideBySide, compare_states, diff_graphs, snapshot
from oproj_pass.passes.fingerprint import Fingerprint, fingerprint
from oproj_pass.passes.gemm.axes import Axis, StoredAxis, TensorAxis, shard_of
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
