"""Runners of decode steps and of split prefills: agree, dispatch, guard, run. See `docs/runtime.md`."""

from oproj_pass.torch_internals import require_internals

require_internals("oproj_pass")

from oproj_pass.agreement.step_group import ControlGroup, Replies, StepGroup
from oproj_pass.agreement.wire import StepKind, StepRow
from oproj_pass.runtime.agree import AgreedStep
from oproj_pass.runtime.context_rows import ContextRows
from oproj_pass.runtime.device_graph import (
    AcceleratorGraphs,
    CallableGraphs,
    DeviceGraphs,
    Graph,
    device_graphs,
)
from oproj_pass.runtime.pcp import (
    ContextParallelStep,
    idle_restore_index,
    idle_slots,
    local_slots,
)
from oproj_pass.runtime.phase import Phase
from oproj_pass.runtime.prefill import PrefillRunner
from oproj_pass.runtime.runner import DecodeRunner

__all__ = [
    "AcceleratorGraphs",
    "AgreedStep",
    "CallableGraphs",
    "ContextParallelStep",
    "ContextRows",
    "ControlGroup",
    "DecodeRunner",
    "DeviceGraphs",
    "Graph",
    "Phase",
    "PrefillRunner",
    "Replies",
    "StepGroup",
    "StepKind",
    "StepRow",
    "device_graphs",
    "idle_restore_index",
    "idle_slots",
    "local_slots",
]
