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
from oproj_pass.errors import EagerStepError
from oproj_pass.flight.record import FLIGHT
from oproj_pass.metrics.counts import StepCounts
from oproj_pass.runtime.agree import AgreedStep
from oproj_pass.runtime.buffers import PersistentInputs
from oproj_pass.runtime.device_graph import Graph
from oproj_pass.runtime.guard import gathers, reason_of_refusal, require_replay
from oproj_pass.runtime.local_step import LocalStep
from oproj_pass.runtime.outputs import Outputs
from oproj_pass.runtime.peers import Peers
from oproj_pass.runtime.wide_steps import WideSteps


class Serving:
    """The steps of one runner: ``graphs`` by size, over ``inputs``, in step with ``peers`` if there are any.

    ``fn``: runs eager where no graph serves a step, which happens only without peers. ``wide``: runs such
    steps with peers; None: they are refused. ``counts``: of these steps. ``sent_nbytes``: to other ranks in a
    replay, by size.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        plan: CapturePlan,
        inputs: PersistentInputs,
        outputs: Outputs,
        graphs: Mapping[int, Graph],
        peers: Peers | None,
        wide: WideSteps | None,
        counts: StepCounts,
        sent_nbytes: Mapping[int, int | None],
    ) -> None:
        self._fn, self._plan, self._peers, self._wide = fn, plan, peers, wide
        self._inputs, self._outputs, self._graphs = inputs, outputs, graphs
        self._counts, self._sent_nbytes = counts, sent_nbytes

    def step(self, check: Callable[[], LocalStep], *, idle: bool = False) -> Any:
        """Run the step that ``check`` finds fit; raises on every rank of the group, or on none."""
        if self._peers is None:
            return self._step_alone(check(), idle)
        local = self._checked(check, self._peers)
        step = self._agree(local, self._peers)
        size = self._plan.dispatch(step.agreement.num_tokens)
        if self._wide is not None and gathers(step, size):
            output = self._gather(local, self._peers, self._wide)
            self._counts.add_step("wide", self._wide.sent_nbytes, idle=idle)
            return output
        size = self._replayed_size(step, size)
        output = self._replay_together(local, size, self._peers)
        self._counts.add_step("replayed", self._sent_nbytes.get(size), idle=idle)
        return output

    def _checked(self, check: Callable[[], LocalStep], peers: Peers) -> LocalStep:
        try:
            return peers.checked(check)
        except Exception:
            self._counts.refusals["cannot_replay"] += 1
            raise

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

    def _gather(self, local: LocalStep, peers: Peers, wide: WideSteps) -> Any:
        try:
            with peers.failing_together("wide step", runs=True):
                return wide.run(local.inputs)
        except Exception:
            self._counts.refusals["failed"] += 1
            raise

    def _replayed_size(self, step: AgreedStep, size: int | None) -> int:
        try:
            return require_replay(step, size, self._plan, self._wide.cannot if self._wide else None)
        except EagerStepError as error:
            self._counts.refusals[reason_of_refusal(step)] += 1
            FLIGHT.write(f"{type(error).__name__}: {error}")
            raise

    def _replay_together(self, local: LocalStep, size: int, peers: Peers) -> Any:
        entry = peers.begin("replay", f"size {size}")
        try:
            with peers.rows_agreed:
                output = self._replay(local, size)
        except Exception as error:
            self._counts.refusals["failed"] += 1
            entry.fail(f"{type(error).__name__}: {error}")
            peers.fail("replay", error, has_run=True)
        entry.end()
        return output

    def _step_alone(self, local: LocalStep, idle: bool) -> Any:
        size = None if local.mode is GraphMode.NONE else self._plan.dispatch(local.num_tokens)
        self._counts.add_step("eager" if size is None else "replayed", 0, idle=idle)
        if size is not None:
            return self._replay(local, size)
        with torch.inference_mode():
            return self._fn(**local.inputs)

    def _replay(self, local: LocalStep, size: int) -> Any:
        if torch.is_inference_mode_enabled():
            return self._load_and_replay(local, size)
        # Lets a step write any tensor, whatever the caller's mode; torch.inference_mode wraps it, slowly.
        with torch._C._InferenceMode(True):
            return self._load_and_replay(local, size)

    def _load_and_replay(self, local: LocalStep, size: int) -> Any:
        self._inputs.load(local.inputs, local.num_rows, size)
        return self._outputs.trim(self._graphs[size].replay(), local.num_rows, size)
