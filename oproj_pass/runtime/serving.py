"""One step of a captured runner: agree -> dispatch -> guard -> copy into persistent inputs -> replay -> trim.

Or, where the group has agreed to gather: agree -> dispatch -> the model unsharded, over the inputs as given.

Decides nothing about phases; the runner makes one when it has captured.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from oproj_pass.agreement.wire import StepKind
from oproj_pass.capture import CapturePlan, GraphMode
from oproj_pass.flight.record import FLIGHT
from oproj_pass.metrics.counts import StepCounts
from oproj_pass.runtime.agree import AgreedStep
from oproj_pass.runtime.buffers import PersistentInputs
from oproj_pass.runtime.device_graph import Graph
from oproj_pass.runtime.guard import gathers, reason_of_refusal, refusal, replays
from oproj_pass.runtime.local_step import LocalStep, StepChecks
from oproj_pass.runtime.outputs import Outputs
from oproj_pass.runtime.peers import Peers
from oproj_pass.runtime.wide_steps import WideSteps


class Serving:
    """The steps of one runner: ``graphs`` by size, over ``inputs``, in step with ``peers`` if there are any.

    ``fn``: runs eager where no graph serves a step, which happens only without peers. ``checks``: of this
    rank's part. ``wide``: runs such steps with peers; None: they are refused. ``counts``: of these steps.
    ``sent_nbytes``: to other ranks in a replay, by size.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        plan: CapturePlan,
        checks: StepChecks,
        inputs: PersistentInputs,
        outputs: Outputs,
        graphs: Mapping[int, Graph],
        peers: Peers | None,
        wide: WideSteps | None,
        counts: StepCounts,
        sent_nbytes: Mapping[int, int | None],
    ) -> None:
        self._fn, self._plan, self._checks, self._peers, self._wide = fn, plan, checks, peers, wide
        self._inputs, self._outputs, self._graphs = inputs, outputs, graphs
        self._counts, self._sent_nbytes = counts, sent_nbytes
        self._words = {size: f"size {size}" for size in graphs}
        # what dispatch says, looked up: every Python function that a step calls is one the model has evicted
        self._dispatched = {count: plan.dispatch(count) for count in range(plan.max_size + 1)}

    def step(
        self,
        inputs: Mapping[str, Any],
        num_tokens: int | Callable[[], int] | None,
        mode: GraphMode,
        uniform_decode: bool,
    ) -> Any:
        """Run a step, see ``DecodeRunner.step``; raises on every rank of the group, or on none."""
        try:
            local = self._checks.check(inputs, num_tokens, mode, uniform_decode)
        except Exception as error:
            self._tell_unfit(error)
            raise
        return self._run(local, idle=False)

    def idle_step(self, current: Mapping[str, Any]) -> None:
        """Take part in a step without requests, see ``DecodeRunner.idle_step``; raises like ``step``."""
        try:
            local = self._checks.check_idle(current)
        except Exception as error:
            self._tell_unfit(error)
            raise
        self._run(local, idle=True)

    def _tell_unfit(self, error: Exception) -> None:
        if self._peers is not None:
            self._counts.refusals["cannot_replay"] += 1
            self._peers.bring_error(error)

    def _run(self, local: LocalStep, *, idle: bool) -> Any:
        peers = self._peers
        if peers is None:
            return self._run_alone(local, idle)
        step = self._agree(local, peers)
        size = self._dispatched.get(step.agreement.num_tokens)
        if size is None or not replays(step, size):
            return self._run_without_graph(local, step, size, peers, idle)
        entry = FLIGHT.begin("replay", peers.name, peers.sequence, self._words[size])
        try:
            with peers.rows_agreed:
                output = self._replay(local, size)
        except Exception as error:
            self._counts.refusals["failed"] += 1
            entry.fail(f"{type(error).__name__}: {error}")
            peers.fail("replay", error, has_run=True)
        entry.end()
        self._counts.add_step("replayed", self._sent_nbytes.get(size), idle=idle)
        return output

    def _agree(self, local: LocalStep, peers: Peers) -> AgreedStep:
        began = time.perf_counter()
        try:
            step = peers.agree(
                StepKind.STEP, local.num_tokens, local.mode, local.reason, gathers=local.gathers
            )
        except Exception:
            self._counts.refusals["group"] += 1
            raise
        self._counts.agreements.add(time.perf_counter() - began)
        return step

    def _run_without_graph(
        self, local: LocalStep, step: AgreedStep, size: int | None, peers: Peers, idle: bool
    ) -> Any:
        """Gather, where every rank is ready to, and refuse the step otherwise."""
        if self._wide is None or not gathers(step, size):
            error = refusal(step, self._plan, self._wide.cannot if self._wide else None)
            self._counts.refusals[reason_of_refusal(step)] += 1
            FLIGHT.write(f"{type(error).__name__}: {error}")
            raise error
        try:
            with peers.failing_together("wide step", runs=True):
                output = self._wide.run(local.inputs)
        except Exception:
            self._counts.refusals["failed"] += 1
            raise
        self._counts.add_step("wide", self._wide.sent_nbytes, idle=idle)
        return output

    def _run_alone(self, local: LocalStep, idle: bool) -> Any:
        size = None if local.mode is GraphMode.NONE else self._plan.dispatch(local.num_tokens)
        self._counts.add_step("eager" if size is None else "replayed", 0, idle=idle)
        if size is not None:
            return self._replay(local, size)
        with torch.inference_mode():
            return self._fn(**local.inputs)

    def _replay(self, local: LocalStep, size: int) -> Any:
        if not torch.is_inference_mode_enabled():
            # Lets a step write any tensor, whatever the caller's mode; torch.inference_mode wraps it, slowly.
            with torch._C._InferenceMode(True):
                return self._replay(local, size)
        self._inputs.load(local.inputs, local.num_rows, size)
        return self._outputs.trim(self._graphs[size].replay(), local.num_rows, size)
