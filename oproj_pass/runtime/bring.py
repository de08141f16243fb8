"""What this rank brings to a step, judged before it meets its peers.

Decides whether this rank alone could replay. What the group does is decided afterwards, from all ranks' rows.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from oproj_pass.capture import GraphMode
from oproj_pass.errors import ConfigError
from oproj_pass.runtime.buffers import PersistentInputs
from oproj_pass.runtime.compiled import unsafe_stance
from oproj_pass.runtime.idle import DummyBatch
from oproj_pass.runtime.npugraph_ex import NpugraphEx
from oproj_pass.runtime.weights import WeightWatch


class Brought(NamedTuple):
    """The inputs of a step, their rows, and this rank's part of the agreement (see ``StepRow``)."""

    inputs: Mapping[str, Any]
    rows: int
    num_tokens: int
    mode: GraphMode
    words: str


class LocalSteps:
    """Judges one rank's steps against what it captured."""

    def __init__(
        self, inputs: PersistentInputs, dummy: DummyBatch, weights: WeightWatch, npugraph_ex: NpugraphEx
    ) -> None:
        self._inputs, self._dummy, self._weights, self._npugraph_ex = inputs, dummy, weights, npugraph_ex

    def bring(
        self,
        inputs: Mapping[str, Any],
        num_tokens: int | Callable[[], int] | None,
        mode: GraphMode,
        uniform_decode: bool,
    ) -> Brought:
        """The step's part of the agreement, see ``DecodeRunner.step``; ``ConfigError`` for unfit inputs."""
        rows = self._inputs.count_tokens(inputs)
        brought = num_tokens() if callable(num_tokens) else rows if num_tokens is None else num_tokens
        if brought < rows:
            raise ConfigError(f"num_tokens={brought} is below the {rows} rows of the inputs")
        words = self._cannot_replay(inputs, brought, mode, uniform_decode)
        return Brought(inputs, rows, brought, GraphMode.NONE if words else mode, words or "")

    def bring_idle(self, current: Mapping[str, Any]) -> Brought:
        """A dummy batch's part of the agreement, see ``DecodeRunner.idle_step``."""
        return self.bring(self._dummy.of(current), None, GraphMode.FULL, True)

    def _cannot_replay(
        self, inputs: Mapping[str, Any], num_tokens: int, mode: GraphMode, uniform_decode: bool
    ) -> str | None:
        if not uniform_decode:
            return (
                f"its batch of {num_tokens} tokens is mixed or prefill, graphs serve uniform decode batches "
                "only. Keep prefill on prefill nodes, so that this node gets decode requests"
            )
        if mode is GraphMode.NONE:
            return "its scheduler dispatched the step with graph mode NONE"
        return (
            unsafe_stance()
            or self._inputs.changed_constant(inputs)
            or self._weights.moved()
            or self._npugraph_ex.gave_up()
        )
