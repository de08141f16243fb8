"""Everything that reads or rewrites an FX graph."""

from oproj_pass.torch_internals import require_internals

require_internals("oproj_pass.passes")

from oproj_pass.passes.diff import GraphDiff, GraphSnapshot, diff_graphs, snapshot
from oproj_pass.passes.exchange import Exchange
from oproj_pass.passes.fingerprint import Fingerprint, fingerprint
from oproj_pass.passes.history import HistoryStep, PassHistory
from oproj_pass.passes.mc2 import FuseMatmulReduceScatter
from oproj_pass.passes.npu import WeightShard, npu_pass
from oproj_pass.passes.overlap import OverlapExchange
from oproj_pass.passes.runner import GraphPass, PassRecord, run_passes
from oproj_pass.passes.shard_oproj import ShardOProj, ShardPlan
from oproj_pass.passes.sites import NearMiss, Projection, find_projections
from oproj_pass.passes.slices import WeightSlice, shard_of

__all__ = [
    "Exchange",
    "Fingerprint",
    "FuseMatmulReduceScatter",
    "GraphDiff",
    "GraphPass",
    "GraphSnapshot",
    "HistoryStep",
    "NearMiss",
    "OverlapExchange",
    "PassHistory",
    "PassRecord",
    "Projection",
    "ShardOProj",
    "ShardPlan",
    "WeightShard",
    "WeightSlice",
    "diff_graphs",
    "find_projections",
    "fingerprint",
    "npu_pass",
    "run_passes",
    "shard_of",
    "snapshot",
]
