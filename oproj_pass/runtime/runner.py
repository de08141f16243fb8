"""Runs decode steps as replays of captured graphs, and refuses any step that would run eager.

Phases: WARMUP (profile and warm-up runs pass unguarded), CAPTURE, SERVING (sealed: nothing compiles now).
With one rank there is nobody to hang: the agreement, the guard and the seal stay off.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import torch
from torch.distributed import ProcessGroup

from oproj_pass.agreement.sharded_calls import sharded_calls
from oproj_pass.agreement.step_group import StepGroup, step_group
from oproj_pass.agreement.wire import StepKind
from oproj_pass.capture import CapturePlan, GraphMode
from oproj_pass.errors import ConfigError
from oproj_pass.flight.signals import write_on_signals
from oproj_pass.groups import ShardGroup
from oproj_pass.metrics.counts import StepCounts
from oproj_pass.runtime.arming import joined_group, warn_unguarded
from oproj_pass.runtime.buffers import Pad, PersistentInputs, count_rows
from oproj_pass.runtime.capture import SizeCapture, require_plan
from oproj_pass.runtime.compiled import unsafe_stance
from oproj_pass.runtime.device_graph import DeviceGraphs, Graph, device_graphs
from oproj_pass.runtime.garbage import FULL_COLLECTIONS
from oproj_pass.runtime.idle import DummyBatch
from oproj_pass.runtime.local_step import StepChecks
from oproj_pass.runtime.lockstep import Lockstep
from oproj_pass.runtime.outputs import Outputs, RowDims
from oproj_pass.runtime.peers import Peers
from oproj_pass.runtime.phase import Phase
from oproj_pass.runtime.replay_limit import limit_replays
from oproj_pass.runtime.serving import Serving
from oproj_pass.runtime.weights import WeightWatch
from oproj_pass.runtime.wide_steps import WideSteps

logger = logging.getLogger(__name__)


class DecodeRunner(Lockstep):
    """Serves decode steps from captured graphs, in step with the other ranks of its group.

    Example:
        >>> rows = {"input_ids": 0, "slots": 0, "block_table": None}
        >>> runner = DecodeRunner(model, plan, rows=rows, pad={"slots": -1})
        >>> runner.capture(example_inputs)                       # every rank
        >>> hidden = runner.step({"input_ids": ids, "slots": slots, "block_table": table})
        >>> runner.idle_step({"block_table": table})             # a rank without requests, in the same step

    Args:
        fn: the model: any callable that takes the inputs as keyword arguments, compiled or not. A KV cache
            belongs to it (a buffer, or bound with ``functools.partial``): inputs are copied.
        plan: the sizes to capture, and which size a token count runs at. Where it names strategies, graphs of
            ``oproj_npu`` have to be compiled under the same plan.
        rows: for every tensor input, the dimension that holds one row for each token, or None if none does.
            Inputs that are not tensors are constants of the captured graphs.
        pad: what unused rows of an input hold; 0 unless given. Use -1 for slots: capture runs on padding.
        output_rows: the dimension of the result's tensors that holds the rows, or one for each of them.
        group: the ranks that must stay in step. By default those that the graphs of ``oproj_npu`` which run
            in it are sharded over, as seen at capture; a model that exchanges rows in another way needs it.
        graphs: how to capture; by default the device graphs of the inputs' device.
        timeout: seconds that a step waits for a peer. A lost peer is reported within three times that.
        capture_timeout: the same while capturing, where ranks compile at their own speed.
        wide_steps: what becomes of a step that no graph serves, wider than the plan or mixed. None: the group
            refuses it. ``"gather"``: the group runs it unsharded and eager, each rank with its own rows, and
            each sharded weight gathered just ahead of its use, through two buffers as large as the largest.
            Equal on all ranks. Where that cannot be done, ``capture`` warns and such steps are refused.
        name: tells runners of one group apart (``"model"``, ``"draft"``).

    With one rank (no group) nothing is refused: a step without a graph runs eager. ``counts`` says what the
    steps came to, see ``StepCounts``.
    """

    _ORDER = "warm_up (optional), then capture once, then step"

    def __init__(
        self,
        fn: Callable[..., Any],
        plan: CapturePlan,
        *,
        rows: Mapping[str, int | None],
        pad: Mapping[str, Pad] | None = None,
        output_rows: RowDims = 0,
        group: ShardGroup | ProcessGroup | StepGroup | None = None,
        graphs: DeviceGraphs | None = None,
        timeout: float = 60.0,
        capture_timeout: float = 600.0,
        wide_steps: Literal["gather"] | None = None,
        name: str = "model",
    ) -> None:
        if wide_steps not in (None, "gather"):
            raise ConfigError(f"wide_steps = {wide_steps!r}, required: 'gather', or None to refuse them")
        self.fn, self.plan, self.name = fn, plan, name
        self.phase, self.counts = Phase.WARMUP, StepCounts()
        write_on_signals()
        self._rows, self._pad, self._outputs = dict(rows), dict(pad or {}), Outputs(output_rows)
        self._device_graphs = graphs
        self._graphs: dict[int, Graph] = {}
        self._timeout, self._capture_timeout = timeout, capture_timeout
        self._peers: Peers | None = None
        self._wide_steps = wide_steps
        self._wide: WideSteps | None = None
        self._join(None if group is None else step_group(group, capture_timeout))

    @property
    def gather_nbytes(self) -> int:
        """Bytes of the two buffers that wide steps gather weights through; 0 where they are refused."""
        return self._wide.nbytes if self._wide else 0

    def warm_up(self, inputs: Mapping[str, Any]) -> Any:
        """Run the model as it is, for profiling and warm-up, before ``capture``; returns its result.

        Unguarded. The ranks still compare their token counts, because different ones would hang even here.
        """
        self._require_phase(Phase.WARMUP, "warm_up")
        if self._peers is not None:
            self._peers.require_equal(StepKind.WARMUP, count_rows(inputs, self._rows))
        with self._failing_together("warm-up", runs=True), torch.inference_mode():
            with sharded_calls() as calls, self._in_step():
                result = self.fn(**inputs)
            self._join_sharded(calls.groups)
            return result

    @FULL_COLLECTIONS.put_off()
    def capture(self, example: Mapping[str, Any]) -> None:
        """Compile and capture every planned size, largest first, then seal the runner for serving.

        ``example``: one value for each input; row-shaped ones with any number of rows. The model runs on
        padding rows only.

        Raises:
            ConfigError: ``rows``, ``pad`` or ``output_rows`` does not fit what the model takes or returns.
            EagerStepError: the model does not run compiled, or goes on compiling.
            GroupMismatchError: a rank of the group is missing, failed, or captures other sizes.
        """
        self._require_phase(Phase.WARMUP, "capture")
        self.phase = Phase.CAPTURE
        with self._failing_together("capture", runs=False):
            self._inputs = PersistentInputs(example, self._rows, self._pad, self.plan.sizes)
            graphs = self._device_graphs or device_graphs(self._inputs.device)
            capture = SizeCapture(self.fn, self.plan, self._inputs, self._outputs, graphs)
        watched = limit_replays(self._inputs.device, self._timeout, self.name, self._group)
        for size in reversed(self.plan.sizes):
            if self._peers is not None:
                self._peers.require_equal(StepKind.CAPTURE, size)
            with self._failing_together(f"capture of size {size}", runs=True), torch.inference_mode():
                with sharded_calls() as calls, self._in_step():
                    call = capture.compile(size)
                self._join_sharded(calls.groups)
                with self._in_step():
                    self._graphs[size] = watched(capture.capture(size, call, sealed=self.armed))
            with self._failing_together(f"plan of size {size}", runs=False):
                require_plan(self.plan, calls)
        if self._group is None:
            warn_unguarded(self.name)
        dummy = DummyBatch(self._inputs, self.plan.bound.idle_tokens)
        weights = WeightWatch(capture.observed)
        if self._peers is not None:
            if self._wide_steps is not None:
                arguments = self._inputs.arguments(self.plan.sizes[0])
                self._wide = WideSteps(self.fn, arguments, self._peers, self._timeout)
            self._peers.limit_collectives()
        checks = StepChecks(
            self._inputs, dummy, unsafe_stance, weights.moved, capture.cannot_replay,
            unfit_to_gather=weights.moved if self._wide and self._wide.cannot is None else None,
        )  # fmt: skip
        self._serving = Serving(
            self.fn, self.plan, checks, self._inputs, self._outputs, self._graphs, self._peers, self._wide,
            self.counts, capture.sent_nbytes,
        )  # fmt: skip
        self.phase = Phase.SERVING
        logger.info("%s: captured %d sizes up to %d", self.name, len(self._graphs), self.plan.max_size)

    def step(
        self,
        inputs: Mapping[str, Any],
        *,
        num_tokens: int | Callable[[], int] | None = None,
        mode: GraphMode = GraphMode.FULL,
        uniform_decode: bool = True,
    ) -> Any:
        """Run one step; returns the result for the rows of ``inputs``, valid until the next step.

        Args:
            inputs: a value for each input, row-shaped ones with equally many rows.
            num_tokens: what this rank brings to the dispatch, if not its rows: under context parallelism the
                largest rank's, as a number or a callable that waits for it (``ContextParallelStep``).
            mode: the graph mode the caller's scheduler allows; NONE makes the whole group refuse.
            uniform_decode: False for a mixed or prefill batch, which no decode graph serves.

        Raises, and on every rank of the group in the same step:
            EagerStepError: a rank cannot replay; names it and why. The next step may be tried.
            GroupMismatchError: a rank is missing, failed, or is not at this step. The runner has stopped.
        """
        self._require_phase(Phase.SERVING, "step")
        return self._serving.step(inputs, num_tokens, mode, uniform_decode)

    def idle_step(self, current: Mapping[str, Any]) -> None:
        """Take part in a step without requests, with a dummy batch of one decode request's tokens.

        Args:
            current: every tensor input without rows (block tables) as it is now, and any rank-local rows;
                rows that are not given are padding.

        Raises like ``step``: an idle rank that ran a refused step eager would be the one that hangs.
        """
        self._require_phase(Phase.SERVING, "idle_step")
        self._serving.idle_step(current)

    def _join(self, group: StepGroup | None) -> None:
        """Agree with the ranks of ``group`` from now on, if there is more than one."""
        self._group = group
        if self._peers is not None or group is None or len(group.ranks) == 1:
            return
        self._peers = Peers(group, self.name, self._timeout, self._capture_timeout)
        if self.plan.warning is not None:
            logger.warning("%s: %s", self.name, self.plan.warning)

    def _join_sharded(self, groups: Collection[ShardGroup]) -> None:
        """The same for those that the graphs which ran are sharded over."""
        self._join(joined_group(self._group, groups))
        if self._peers is not None:
            self._peers.exchange_in(groups)
