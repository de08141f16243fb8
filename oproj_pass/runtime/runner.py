"""Runs decode steps as replays of captured graphs, and refuses any step that would run eager.

    inputs -> agree across the group -> dispatch -> guard -> copy into persistent inputs -> replay -> trim

Phases: WARMUP (profile and warm-up runs pass unguarded), CAPTURE, SERVING (sealed: nothing compiles any more).
With one rank there is nobody to hang: the agreement, the guard and the seal stay off.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.distributed import ProcessGroup

from oproj_pass.capture import CapturePlan, GraphMode
from oproj_pass.errors import ConfigError, EagerStepError, GroupMismatchError, OProjError
from oproj_pass.groups import ShardGroup, shard_group
from oproj_pass.runtime.agree import AgreedStep, Agreement
from oproj_pass.runtime.buffers import Pad, PersistentInputs, count_rows
from oproj_pass.runtime.compiled import (
    SealedCall,
    count_compiled_frames,
    is_compiled,
    room_for,
    unsafe_stance,
)
from oproj_pass.runtime.device_graph import DeviceGraphs, Graph, device_graphs
from oproj_pass.runtime.exchange import ControlGroup, StepGroup
from oproj_pass.runtime.guard import require_replay
from oproj_pass.runtime.idle import DummyBatch
from oproj_pass.runtime.outputs import Outputs, RowDims
from oproj_pass.runtime.seal import WeightWatch, shard_groups
from oproj_pass.runtime.wire import StepKind

logger = logging.getLogger(__name__)


class Phase(Enum):
    """Where a runner is in its life."""

    WARMUP = "warmup"
    CAPTURE = "capture"
    SERVING = "serving"


class Brought(NamedTuple):
    """What this rank brings to a step: its inputs, their rows, and its part of the agreement."""

    inputs: Mapping[str, Any]
    rows: int
    num_tokens: int
    mode: GraphMode
    words: str


class DecodeRunner:
    """Serves decode steps from captured graphs, in step with the other ranks of its group.

    >>> runner = DecodeRunner(model, plan, rows={"input_ids": 0, "slots": 0, "block_table": None}, pad={"slots": -1})
    >>> runner.capture(example_inputs)                       # every rank
    >>> hidden = runner.step({"input_ids": ids, "slots": slots, "block_table": table})
    >>> runner.idle_step({"block_table": table})             # a rank without requests, in the same step

    Args:
        fn: the model: any callable that takes the inputs as keyword arguments, compiled or not. A KV cache
            belongs to it (a buffer, or bound with ``functools.partial``): inputs are copied.
        plan: the sizes to capture, and which size a token count runs at.
        rows: for every tensor input, the dimension that holds one row for each token, or None if none does.
            Inputs that are not tensors are constants of the captured graphs.
        pad: what unused rows of an input hold; 0 unless given. Use -1 for slots: capture runs on padding.
        output_rows: the dimension of the result's tensors that holds the rows, or one for each of them.
        group: the ranks that must stay in step. By default those that the model's released weights are
            sharded over, as found at capture; with ``release_weights=False`` it must be given.
        graphs: how to capture; by default the device graphs of the inputs' device.
        timeout: seconds that a step waits for a peer. A lost peer is reported within three times that.
        capture_timeout: the same while capturing, where ranks compile at their own speed.
        name: tells runners of one group apart (``"model"``, ``"draft"``).

    With one rank (no group) nothing is refused: a step without a graph runs eager.
    """

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
        name: str = "model",
    ) -> None:
        self.fn, self.plan, self.name = fn, plan, name
        self.timeout, self.capture_timeout = timeout, capture_timeout
        self.phase = Phase.WARMUP
        self.last_step: AgreedStep | None = None
        self._rows, self._pad, self._outputs = dict(rows), dict(pad or {}), Outputs(output_rows)
        self._device_graphs = graphs
        self._graphs: dict[int, Graph] = {}
        self._agreement: Agreement | None = None
        self._stopped: str | None = None
        if group is not None:
            self._join(_step_group(group, capture_timeout))

    @property
    def armed(self) -> bool:
        """Whether steps are agreed and guarded: the group has more than one rank."""
        return self._agreement is not None

    @property
    def num_meetings(self) -> int:
        """Collectives this runner issued on the CPU, one a step; equal on every rank of the group."""
        return self._agreement.num_meetings if self._agreement else 0

    def warm_up(self, inputs: Mapping[str, Any]) -> Any:
        """Run the model as it is, for profiling and warm-up, before ``capture``; returns its result.

        Unguarded. The ranks still compare their token counts, because different ones would hang even here.
        """
        self._require_phase(Phase.WARMUP, "warm_up")
        num_tokens = count_rows(inputs, self._rows)
        if self.armed:
            self._meet(StepKind.WARMUP, num_tokens, GraphMode.NONE, "warm-up", self.capture_timeout)
            self._require_equal("warm-up", "tokens")
        with self._failing_together("warm-up", self.capture_timeout), torch.no_grad():
            return self.fn(**inputs)

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
        with self._failing_together("capture", self.capture_timeout):
            self._inputs = PersistentInputs(example, self._rows, self._pad, self.plan.sizes)
            self._dummy = DummyBatch(self._inputs, self.plan.bound.decode_query_len)
            self._device_graphs = self._device_graphs or device_graphs(self._inputs.device)
        for size in reversed(self.plan.sizes):
            if self.armed:
                self._meet(StepKind.CAPTURE, size, GraphMode.FULL, "", self.capture_timeout)
                self._require_equal("capture", "captured size")
            with self._failing_together(f"capture of size {size}", self.capture_timeout):
                self._graphs[size] = self._capture(size)
        self._weights = WeightWatch(self.fn)
        if self._agreement is not None:
            self._agreement.group.limit_collectives(self.timeout)
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
        return self._serve(lambda: self._bring(inputs, num_tokens, mode, uniform_decode))

    def idle_step(self, current: Mapping[str, Any]) -> None:
        """Take part in a step without requests, with a dummy batch of one decode request's tokens.

        Args:
            current: every tensor input without rows (block tables) as it is now, and any rank-local rows;
                rows that are not given are padding.

        Raises like ``step``: an idle rank that ran a refused step eager would be the one that hangs.
        """
        self._serve(lambda: self._bring(self._dummy.of(current), None, GraphMode.FULL, True))

    def _bring(
        self,
        inputs: Mapping[str, Any],
        num_tokens: int | Callable[[], int] | None,
        mode: GraphMode,
        uniform_decode: bool,
    ) -> Brought:
        rows = self._inputs.count_tokens(inputs)
        brought = num_tokens() if callable(num_tokens) else rows if num_tokens is None else num_tokens
        if brought < rows:
            raise ConfigError(f"num_tokens={brought} is below the {rows} rows of the inputs")
        words = self._cannot_replay(inputs, brought, mode, uniform_decode)
        return Brought(inputs, rows, brought, GraphMode.NONE if words else mode, words or "")

    def _cannot_replay(
        self, inputs: Mapping[str, Any], num_tokens: int, mode: GraphMode, uniform_decode: bool
    ) -> str | None:
        """Why this rank has no graph for the step, as far as it can tell alone."""
        if not uniform_decode:
            return (
                f"its batch of {num_tokens} tokens is mixed or prefill, graphs serve uniform decode batches "
                "only. Keep prefill on prefill nodes, so that this node gets decode requests"
            )
        if mode is GraphMode.NONE:
            return "its scheduler dispatched the step with graph mode NONE"
        return unsafe_stance() or self._inputs.changed_constant(inputs) or self._weights.moved()

    def _serve(self, bring: Callable[[], Brought]) -> Any:
        self._require_phase(Phase.SERVING, "step")
        try:
            brought = bring()
        except Exception as error:
            if self.armed:
                words = f"{type(error).__name__}: {error}"
                self._meet(StepKind.STEP, 0, GraphMode.NONE, words, self.timeout)
            raise
        size = self._agree(brought)
        if size is None:
            with torch.no_grad():
                return self.fn(**brought.inputs)
        with self._failing_together("replay", self.timeout):
            self._inputs.load(brought.inputs, brought.rows, size)
            return self._outputs.trim(self._graphs[size].replay(), brought.rows, size)

    def _agree(self, brought: Brought) -> int | None:
        """The size the group replays; None, eager, only where there is no group."""
        if not self.armed:
            return None if brought.mode is GraphMode.NONE else self.plan.dispatch(brought.num_tokens)
        step = self._meet(StepKind.STEP, brought.num_tokens, brought.mode, brought.words, self.timeout)
        size = self.plan.dispatch(step.agreement.num_tokens)
        require_replay(step, size, self.plan)
        return size

    def _capture(self, size: int) -> Graph:
        assert self._device_graphs is not None
        call = partial(self.fn, **self._inputs.arguments(size))
        with room_for(len(self.plan.sizes)), torch.no_grad():
            call()
            output, frames = count_compiled_frames(call)  # again: the first call may build something lazily
        self._outputs.require_fitting(output, size)
        self._join_shards()
        if not self.armed:
            return self._device_graphs.capture(call)
        if is_compiled(self.fn) and frames == 0:
            raise EagerStepError(
                f"size {size} ran eager, not compiled: {unsafe_stance() or _EXHAUSTED}. Sharded steps must not."
            )
        sealed = SealedCall(call, frames)
        sealed()
        return self._device_graphs.capture(sealed)

    def _join_shards(self) -> None:
        """Stay in step with the ranks that the weights turned out to be sharded over."""
        for group in shard_groups(self.fn):
            if self._agreement is None:
                self._join(ControlGroup(group))
            elif self._agreement.group.ranks != group.ranks:
                raise ConfigError(
                    f"the runner's group is ranks {list(self._agreement.group.ranks)}, but weights of the model "
                    f"are sharded over ranks {list(group.ranks)}: give the runner that group"
                )

    def _join(self, group: StepGroup) -> None:
        if len(group.ranks) == 1:
            return
        self._agreement = Agreement(group, self.name)
        if self.plan.warning is not None:
            logger.warning("%s: %s", self.name, self.plan.warning)

    def _meet(
        self, kind: StepKind, num_tokens: int, mode: GraphMode, words: str, timeout: float
    ) -> AgreedStep:
        assert self._agreement is not None
        try:
            self.last_step = self._agreement.meet(kind, num_tokens, mode, words, timeout)
        except GroupMismatchError as error:
            self._stopped = str(error)
            raise
        return self.last_step

    def _require_equal(self, doing: str, what: str) -> None:
        assert self.last_step is not None
        counts = {
            rank: row.num_tokens for rank, row in zip(self.last_step.ranks, self.last_step.rows, strict=True)
        }
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"rank {rank} {count}" for rank, count in counts.items())
            raise GroupMismatchError(f"{self.name}, {doing}: {what} differs: {listed}. It must be equal.")

    def _require_phase(self, phase: Phase, method: str) -> None:
        if self._stopped is not None:
            raise GroupMismatchError(f"{self.name} has stopped: {self._stopped}")
        if self.phase is not phase:
            raise EagerStepError(
                f"{self.name}: {method} needs phase {phase.name}, the runner is in {self.phase.name}. Call "
                "warm_up (optional), then capture once, then step."
            )

    @contextmanager
    def _failing_together(self, doing: str, timeout: float) -> Iterator[None]:
        """Tell the group of an error that happens inside, and say in the error what the group answers."""
        try:
            yield
        except Exception as error:
            if self._agreement is None:
                raise
            told = self._agreement.call_roll(f"{doing}: {_brief(error)}", 2 * timeout)
            self._stopped = f"{doing} failed: {_brief(error)}; {told}"
            if isinstance(error, OProjError):
                raise
            rank = self._agreement.group.ranks[self._agreement.group.rank]
            raise GroupMismatchError(
                f"{self.name}: {doing} failed on rank {rank}: {_brief(error)}. Its group: {told}."
            ) from error


_EXHAUSTED = (
    "Dynamo does not compile it any more, its recompile limit was reached before the runner was made (call "
    "torch._dynamo.reset(), and let the runner make the first calls)"
)


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _step_group(group: ShardGroup | ProcessGroup | StepGroup, timeout: float) -> StepGroup:
    if isinstance(group, ProcessGroup):
        group = shard_group(group.size(), group, timeout)
    return ControlGroup(group) if isinstance(group, ShardGroup) else group
