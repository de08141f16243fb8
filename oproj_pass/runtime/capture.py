"""Compiles and captures a callable for each planned size, and remembers what ran while it did.

Decides nothing about steps or peers: the runner says whether there are any.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from oproj_pass.capture import CapturePlan
from oproj_pass.runtime.buffers import PersistentInputs
from oproj_pass.runtime.compiled import SealedCall, compile_call
from oproj_pass.runtime.device_graph import CallableGraphs, DeviceGraphs, Graph
from oproj_pass.runtime.npugraph_ex import NpugraphEx
from oproj_pass.runtime.observe import Observation
from oproj_pass.runtime.outputs import Outputs

Call = Callable[[], Any]


class SizeCapture:
    """Captures the planned sizes of one callable over its persistent inputs, largest first."""

    def __init__(
        self,
        fn: Callable[..., Any],
        plan: CapturePlan,
        inputs: PersistentInputs,
        outputs: Outputs,
        graphs: DeviceGraphs,
    ) -> None:
        self._fn, self._plan, self._inputs, self._outputs = fn, plan, inputs, outputs
        self._graphs = graphs
        self.npugraph_ex = NpugraphEx()
        self.observed = Observation()

    def compile(self, size: int) -> Call:
        """The call of ``size`` rows, once it has compiled; raises ``ConfigError`` for unfit outputs."""
        call = partial(self._fn, **self._inputs.arguments(size))
        output = compile_call(call, len(self._plan.sizes), self.observed)
        self._outputs.require_fitting(output, size)
        return call

    def capture(self, call: Call, size: int, *, sealed: bool) -> Graph:
        """The graph of a compiled call; ``sealed``: its replays may neither compile nor capture again."""
        if sealed:
            call = SealedCall(call)
            call()
        num_sizes, num_left = len(self._plan.sizes), self._plan.sizes.index(size)
        replaying = self.npugraph_ex.captured(call, num_sizes, num_left)
        if replaying is None:
            return self._graphs.capture(call)
        return replaying if sealed else CallableGraphs().capture(call)
