"""The decode runtime: agree, dispatch, guard, replay. `docs/runtime.md` has the phases and the refusals."""

from oproj_pass.torch_internals import require_internals

require_internals("oproj_pass")

from oproj_pass.agreement.step_group import ControlGroup, Replies, StepGroup
from oproj_pass.agreement.wire import StepKind, StepRow
from oproj_pass.runtime.agree import AgreedStep
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
from oproj_pass.runtime.runner import DecodeRunner

__all__ = [
    "AcceleratorGraphs",
    "AgreedStep",
    "CallableGraphs",
    "ContextParallelStep",
    "ControlGroup",
    "DecodeRunner",
    "DeviceGraphs",
    "Graph",
    "Phase",
    "Replies",
    "StepGroup",
    "StepKind",
    "StepRow",
    "device_graphs",
    "idle_restore_index",
    "idle_slots",
    "local_slots",
]
