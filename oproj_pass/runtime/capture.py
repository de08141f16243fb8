"""Compiles and captures a callable for each planned size, and remembers what ran while it did.

Decides nothing about steps or peers: the runner says whether there are any.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from oproj_pass.agreement.sharded_calls import ShardedCalls, sharded_calls
from oproj_pass.capture import CapturePlan
from oproj_pass.errors import ConfigError
from oproj_pass.runtime.buffers import PersistentInputs
from oproj_pass.runtime.compiled import SealedCall, compile_call
from oproj_pass.runtime.device_graph import Call, DeviceGraphs, Graph
from oproj_pass.runtime.npugraph_ex import NpugraphExGraphs
from oproj_pass.runtime.observe import Observation
from oproj_pass.runtime.outputs import Outputs


class SizeCapture:
    """Captures the planned sizes of one callable over its persistent inputs, largest first.

    ``sent_nbytes``: what this rank sends to others in a replay, by size; None where that is not known.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        plan: CapturePlan,
        inputs: PersistentInputs,
        outputs: Outputs,
        graphs: DeviceGraphs,
    ) -> None:
        self._fn, self._plan, self._inputs, self._outputs = fn, plan, inputs, outputs
        self._device_graphs = graphs
        self._graphs: NpugraphExGraphs | None = None
        self.observed = Observation()
        self.sent_nbytes: dict[int, int | None] = {}

    def compile(self, size: int) -> Call:
        """The call of ``size`` rows, once it has compiled; raises ``ConfigError`` for unfit outputs."""
        call = partial(self._fn, **self._inputs.arguments(size))
        output = compile_call(call, self._plan, self.observed)
        self._outputs.require_fitting(output, size)
        return call

    def capture(self, size: int, call: Call, *, sealed: bool) -> Graph:
        """The graph of a compiled call; ``sealed``: its replays may neither compile nor capture again."""
        if sealed:
            call = SealedCall(call)
            with sharded_calls() as calls:
                call()
            self.sent_nbytes[size] = calls.sent_nbytes
        if self._graphs is None:
            self._graphs = NpugraphExGraphs(self._device_graphs, len(self._plan.sizes), replay_only=sealed)
        return self._graphs.capture(call)

    @property
    def cannot_replay(self) -> Callable[[], str | None]:
        """Says why the captured graphs may not be replayed any more."""
        assert self._graphs is not None
        return self._graphs.cannot_replay


def require_plan(plan: CapturePlan, calls: ShardedCalls) -> None:
    """Raise ``ConfigError`` if a sharded graph that ran was compiled under another plan's strategies."""
    if others := calls.plans - {plan.fingerprint}:
        raise ConfigError(
            f"a graph of oproj_npu was compiled under the strategies {min(others) or 'of no plan'}, and the "
            f"runner's plan has {plan.fingerprint or 'none'}: give both the same plan, "
            'options={"plan": plan} and DecodeRunner(..., plan)'
        )
