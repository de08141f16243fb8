"""Pure capture planning: no tensors, no torch.

How many tokens a decode step can bring, which sizes to capture so that every step has one, and what ranks
agree on before a step. `docs/capture.md` has the rules and examples.
"""

from oproj_pass.capture.agreement import GraphMode, StepAgreement, agree_step
from oproj_pass.capture.baselines import vllm_ascend_sizes, vllm_sizes
from oproj_pass.capture.bounds import StepBound
from oproj_pass.capture.context_batch import ContextBatch
from oproj_pass.capture.context_groups import ExpertPadding, consecutive_groups, strided_groups
from oproj_pass.capture.context_lengths import AttentionLengths, ContextLengths, context_lengths
from oproj_pass.capture.context_rows import LocalRows, WholeRows
from oproj_pass.capture.context_slots import SlotLayout
from oproj_pass.capture.context_split import ContextSplit
from oproj_pass.capture.coverage import CoverageComparison, compare_coverage
from oproj_pass.capture.histogram import Histogram, load_histogram
from oproj_pass.capture.padding import Padding, PaddingComparison
from oproj_pass.capture.pcp import dispatch_size
from oproj_pass.capture.plan import CapturePlan
from oproj_pass.capture.planner import plan_capture
from oproj_pass.capture.size_strategy import SizeStrategy
from oproj_pass.capture.stream_budget import StreamShape

__all__ = [
    "AttentionLengths",
    "CapturePlan",
    "ContextBatch",
    "ContextLengths",
    "ContextSplit",
    "CoverageComparison",
    "ExpertPadding",
    "GraphMode",
    "Histogram",
    "LocalRows",
    "Padding",
    "PaddingComparison",
    "SizeStrategy",
    "SlotLayout",
    "StepAgreement",
    "StepBound",
    "StreamShape",
    "WholeRows",
    "agree_step",
    "compare_coverage",
    "consecutive_groups",
    "context_lengths",
    "dispatch_size",
    "load_histogram",
    "plan_capture",
    "strided_groups",
    "vllm_ascend_sizes",
    "vllm_sizes",
]
