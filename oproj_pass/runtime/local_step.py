"""This rank's part of a step, checked before the ranks agree.

Decides whether this rank alone could replay. What the group does is decided afterwards, from all ranks' rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oproj_pass.capture import GraphMode
from oproj_pass.errors import ConfigError
from oproj_pass.runtime.buffers import PersistentInputs
from oproj_pass.runtime.idle import DummyBatch

Check = Callable[[], str | None]


@dataclass(slots=True)
class LocalStep:
    """The inputs of a step, their rows, and this rank's part of the agreement (see ``StepRow``)."""

    inputs: Mapping[str, Any]
    num_rows: int
    num_tokens: int
    mode: GraphMode
    reason: str
    gathers: bool = False


class StepChecks:
    """Checks one rank's steps against what it captured.

    ``checks``: each says why no graph may be replayed now, or None. ``unfit_to_gather``: why no weights may
    be gathered for a step that no graph serves; None where the group does not gather.
    """

    def __init__(
        self,
        inputs: PersistentInputs,
        dummy: DummyBatch,
        *checks: Check,
        unfit_to_gather: Check | None = None,
    ) -> None:
        self._inputs, self._dummy, self._checks = inputs, dummy, checks
        self._unfit_to_gather = unfit_to_gather

    def check(
        self,
        inputs: Mapping[str, Any],
        num_tokens: int | Callable[[], int] | None = None,
        mode: GraphMode = GraphMode.FULL,
        uniform_decode: bool = True,
    ) -> LocalStep:
        """This rank's part of a step, see ``DecodeRunner.step``; ``ConfigError`` for unfit inputs."""
        num_rows = self._inputs.count_tokens(inputs)
        if num_tokens is None:
            num_tokens = num_rows
        elif callable(num_tokens):
            num_tokens = num_tokens()
        if num_tokens < num_rows:
            raise ConfigError(f"num_tokens={num_tokens} is below the {num_rows} rows of the inputs")
        if uniform_decode and mode is not GraphMode.NONE:
            reason = unfit = self._cannot_replay(inputs)
        else:
            unfit = self._unfit_to_gather() if self._unfit_to_gather else None
            reason = _not_for_graphs(num_tokens, uniform_decode)
            reason = f"{reason}; and {unfit}" if unfit else reason
        gathers = self._unfit_to_gather is not None and unfit is None
        possible = GraphMode.NONE if reason else mode
        return LocalStep(inputs, num_rows, num_tokens, possible, reason or "", gathers)

    def check_idle(self, current: Mapping[str, Any]) -> LocalStep:
        """A dummy batch's part of a step, see ``DecodeRunner.idle_step``."""
        return self.check(self._dummy.of(current))

    def _cannot_replay(self, inputs: Mapping[str, Any]) -> str | None:
        for check in self._checks:
            if (reason := check()) is not None:
                return reason
        return self._inputs.changed_constant(inputs)


def _not_for_graphs(num_tokens: int, uniform_decode: bool) -> str:
    """Why the caller's batch is none for any graph, in words."""
    if not uniform_decode:
        return (
            f"its batch of {num_tokens} tokens is mixed or prefill, graphs serve uniform decode batches "
            "only. Keep prefill on prefill nodes, so that this node gets decode requests"
        )
    return "its scheduler dispatched the step with graph mode NONE"
