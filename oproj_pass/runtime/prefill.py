"""Runs steps whose prefills are split over context-parallel ranks, in step with all ranks of a group.

A step is: plan the split once; agree; split into persistent inputs; run; restore once. Replicas (groups of
ranks that share prompts) run equally many rows, so that a model may exchange rows across them as well.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.distributed import ProcessGroup

from oproj_pass.agreement.half_done import note_half_done
from oproj_pass.agreement.step_group import StepGroup, step_group
from oproj_pass.agreement.wire import StepKind
from oproj_pass.capture import GraphMode
from oproj_pass.capture.checks import require_int
from oproj_pass.errors import ConfigError, GroupMismatchError
from oproj_pass.flight.record import FLIGHT
from oproj_pass.groups import ShardGroup, shard_group
from oproj_pass.runtime.buffers import Pad
from oproj_pass.runtime.context_buffers import ContextBuffers
from oproj_pass.runtime.context_words import refusal
from oproj_pass.runtime.garbage import FULL_COLLECTIONS
from oproj_pass.runtime.lockstep import Lockstep
from oproj_pass.runtime.outputs import Outputs, RowDims
from oproj_pass.runtime.pcp import ContextParallelStep
from oproj_pass.runtime.peers import Peers
from oproj_pass.runtime.phase import Phase
from oproj_pass.runtime.split_model import SplitModel, SplitStep

logger = logging.getLogger(__name__)


class PrefillRunner(Lockstep):
    """Serves steps of prefills and decodes, each prefill split over the ranks of ``context``.

    Example:
        >>> runner = PrefillRunner(
        ...     model, sizes=[64, 512], rows={"input_ids": 0, "positions": 0, "slots": 0},
        ...     whole=["slots"], pad={"slots": -1}, context=pair, group=world)
        >>> runner.warm_up(example_inputs)                       # every rank
        >>> requests = ContextParallelStep(2, [300, 1], [300, 40], [0, 40])  # a prefill and a decode
        >>> hidden = runner.step(inputs, requests)               # of 301 rows, on both ranks of the pair
        >>> runner.idle_step({})                                 # a pair without requests, in the same step

    Args:
        fn: the model, compiled or not: takes this rank's rows of the inputs as keyword arguments, and
            ``context`` (``ContextRows``), by which its attentions gather keys and values. Returns local rows.
        sizes: rows of a rank that the model runs at; a step takes the smallest that holds the agreed number.
        rows: for every tensor input, the dimension that holds one row for each token, or None if none does.
        whole: inputs of which the model reads all rows too, such as the slots that keys are written to.
        pad: what unused rows of an input hold; 0 unless given. Use -1 for slots: warm-up runs on padding.
        output_rows: the dimension of the result's tensors that holds the rows, or one for each of them.
        context: the ranks that share each prompt. None: this rank has its rows to itself, as has a draft
            model that every rank runs on all rows, and whose ranks agree on the number of these.
        group: all ranks that must stay in step, those of every replica; those of ``context`` by default.
        timeout: seconds that a step waits for a peer. A lost peer is reported within three times that.
        capture_timeout: the same while warming up, where ranks compile at their own speed.
        name: tells runners of one group apart (``"prefill"``, ``"draft"``).

    Raises:
        ConfigError: ``sizes`` are no sizes, or ``group`` lacks a rank of ``context``.
    """

    _ORDER = "warm_up once, then step"

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        sizes: Sequence[int],
        rows: Mapping[str, int | None],
        whole: Collection[str] = (),
        pad: Mapping[str, Pad] | None = None,
        output_rows: RowDims = 0,
        context: ShardGroup | ProcessGroup | None = None,
        group: ShardGroup | ProcessGroup | StepGroup | None = None,
        timeout: float = 60.0,
        capture_timeout: float = 600.0,
        name: str = "prefill",
    ) -> None:
        self.fn, self.name, self.phase = fn, name, Phase.WARMUP
        self.sizes = tuple(sorted({require_int("sizes", size, minimum=1) for size in sizes}))
        if not self.sizes:
            raise ConfigError("sizes is empty: give the numbers of rows that a rank runs at")
        self._rows, self._whole, self._pad = dict(rows), tuple(whole), dict(pad or {})
        self._outputs, self._timeout = Outputs(output_rows), timeout
        if isinstance(context, ProcessGroup):
            context = shard_group(context.size(), context, capture_timeout)
        self._context, group = context, context if group is None else group
        self._peers = self._joined(
            None if group is None else step_group(group, capture_timeout), capture_timeout
        )

    @FULL_COLLECTIONS.put_off()
    def warm_up(self, example: Mapping[str, Any]) -> None:
        """Run the model at every size, on padding rows, largest first; every rank of the group does.

        ``example``: one value for each input; row-shaped ones with any number of rows.

        Raises:
            ConfigError: ``rows``, ``whole``, ``pad`` or ``output_rows`` does not fit what the model takes or
                returns.
            GroupMismatchError: a rank of the group is missing, failed, or runs at other sizes.
        """
        self._require_phase(Phase.WARMUP, "warm_up")
        with self._failing_together("warm-up", runs=False):
            buffers = ContextBuffers(example, self._rows, self._whole, self._pad, self.sizes, self._context)
            self._model = SplitModel(self.fn, buffers, self._outputs, self.sizes, self._context)
            dummy = self._model.dummy(buffers.fixed(example))
        for size in reversed(self.sizes):
            if self._peers is not None:
                self._peers.require_equal(StepKind.CAPTURE, size)
            with self._failing_together(f"warm-up at size {size}", runs=True):
                self._model.run(dummy, size)
        if self._peers is not None:
            self._peers.limit_collectives()
        self.phase = Phase.SERVING
        logger.info("%s: runs at %d sizes up to %d rows a rank", self.name, len(self.sizes), self.sizes[-1])

    def step(self, inputs: Mapping[str, Any], requests: ContextParallelStep) -> Any:
        """Run one step; returns the result for all rows of ``inputs``, on every rank of ``context``.

        Args:
            inputs: a value for each input, equal on all ranks of ``context``; row-shaped ones hold the rows
                of all requests, one request after the other.
            requests: whose rows they are, and which of them prefill.

        Raises, and on every rank of the group in the same step:
            ConfigError: on a rank whose inputs are unfit or above the largest size.
            GroupMismatchError: on its peers; or the ranks of ``context`` bring different requests. Nothing
                ran, and the next step may be tried. Or a rank is missing, failed, or is not at this step:
                then the runner has stopped.
        """
        self._require_phase(Phase.SERVING, "step")
        return self._step(lambda: self._model.checked(inputs, requests))

    def idle_step(self, current: Mapping[str, Any]) -> None:
        """Take part in a step without requests, as all of ``context`` do, with a dummy batch of one row.

        Args:
            current: every tensor input without rows (block tables) as it is now, and any rank-local rows;
                rows that are not given are padding.

        Raises like ``step``.
        """
        self._require_phase(Phase.SERVING, "idle_step")
        self._step(lambda: self._model.dummy(current))

    def _step(self, check: Callable[[], SplitStep]) -> Any:
        if self._peers is None:
            step = check()
            return self._model.run(step, self._model.size_of(step.batch.local_total))
        try:
            step = check()
        except Exception as error:
            self._peers.bring_error(error)
            raise
        group = self._peers.group
        words = step.words(self._context.ranks if self._context else [group.ranks[group.rank]])
        agreed = self._peers.agree(StepKind.STEP, step.batch.local_total, GraphMode.FULL, words)
        if (why := refusal(agreed)) is not None:
            FLIGHT.write(f"refused: {why}")
            raise GroupMismatchError(
                f"{self.name}, agreement {self.num_agreements - 1}: no rank runs this step, because {why}. "
                "Nothing ran: the next step may be tried."
            )
        with self._failing_together("step", runs=True):
            return self._model.run(step, self._model.size_of(agreed.agreement.num_tokens))

    @contextmanager
    def _failing_together(self, doing: str, *, runs: bool) -> Iterator[None]:
        """Surrounds what every rank does alike; ``runs``: in step, with collectives of the model."""
        if self._peers is None:
            yield
            return
        with self._peers.failing_together(doing, runs=runs):
            if not runs:
                yield
                return
            try:
                with self._peers.rows_agreed:
                    yield
            except BaseException as error:
                if self._context is not None:
                    note_half_done(self._context.device, f"{self.name}: {type(error).__name__}: {error}")
                raise

    def _joined(self, group: StepGroup | None, capture_timeout: float) -> Peers | None:
        shared = self._context.ranks if self._context else ()
        if group is None:
            return None
        if not set(shared) <= set(group.ranks):
            raise ConfigError(
                f"group is ranks {list(group.ranks)}, but ranks {list(shared)} share each prompt: give all "
                "ranks that must stay in step as `group`"
            )
        if len(group.ranks) == 1:
            return None
        peers = Peers(group, self.name, self._timeout, capture_timeout)
        if self._context is not None:
            peers.exchange_in([self._context])
        return peers
