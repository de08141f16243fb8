"""One step of a captured runner: agree -> dispatch -> guard -> copy into persistent inputs -> replay -> trim.

Or, where the group has agreed to gather: agree -> dispatch -> the model unsharded, over the inputs as given.

Decides nothing about phases; the runner makes one when it has captured.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from oproj_pass.agreement.wire import StepKind
from oproj_pass.capture import CapturePlan, GraphMode
from oproj_pass.errors import EagerStepError
from oproj_pass.flight.record import FLIGHT
from oproj_pass.runtime.agree import AgreedStep
from oproj_pass.runtime.buffers import PersistentInputs
from oproj_pass.runtime.device_graph import Graph
from oproj_pass.runtime.guard import gathers, require_replay
from oproj_pass.runtime.local_step import LocalStep
from oproj_pass.runtime.outputs import Outputs
from oproj_pass.runtime.peers import Peers
from oproj_pass.runtime.wide_steps import WideSteps


class Serving:
    """The steps of one runner: ``graphs`` by size, over ``inputs``, in step with ``peers`` if there are any.

    ``fn``: runs eager where no graph serves a step, which happens only without peers. ``wide``: runs such
    steps with peers; None: they are refused.
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
    ) -> None:
        self._fn, self._plan, self._peers, self._wide = fn, plan, peers, wide
        self._inputs, self._outputs, self._graphs = inputs, outputs, graphs

    def step(self, check: Callable[[], LocalStep]) -> Any:
        """Run the step that ``check`` finds fit; raises on every rank of the group, or on none."""
        if self._peers is None:
            return self._step_alone(check())
        local = self._peers.checked(check)
        step = self._peers.agree(
            StepKind.STEP, local.num_tokens, local.mode, local.reason, gathers=local.gathers
        )
        size = self._plan.dispatch(step.agreement.num_tokens)
        if self._wide is not None and gathers(step, size):
            return self._gather(local, self._peers, self._wide)
        size = self._replayed_size(step, size)
        entry = self._peers.begin("replay", f"size {size}")
        try:
            with self._peers.rows_agreed:
                output = self._replay(local, size)
        except Exception as error:
            entry.fail(f"{type(error).__name__}: {error}")
            self._peers.fail("replay", error, has_run=True)
        entry.end()
        return output

    @staticmethod
    def _gather(local: LocalStep, peers: Peers, wide: WideSteps) -> Any:
        with peers.failing_together("wide step", runs=True):
            return wide.run(local.inputs)

    def _replayed_size(self, step: AgreedStep, size: int | None) -> int:
        try:
            return require_replay(step, size, self._plan, self._wide.cannot if self._wide else None)
        except EagerStepError as error:
            FLIGHT.write(f"{type(error).__name__}: {error}")
            raise

    def _step_alone(self, local: LocalStep) -> Any:
        size = None if local.mode is GraphMode.NONE else self._plan.dispatch(local.num_tokens)
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
