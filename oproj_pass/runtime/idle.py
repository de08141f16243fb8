"""The dummy batch of a rank that has no requests but takes part in its group's step.

Everything it reads is brought anew for each step: tensors without rows (block tables, cache lengths) must
come from the current state, and rows that are not given are padding. Nothing of the last batch survives: a
graph replayed over yesterday's slots writes into blocks that belong to somebody else today.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from oproj_pass.errors import ConfigError
from oproj_pass.runtime.buffers import PersistentInputs


class DummyBatch:
    """Builds dummy inputs of ``num_tokens`` rows, the tokens of one decode request."""

    def __init__(self, inputs: PersistentInputs, num_tokens: int) -> None:
        self._inputs, self.num_tokens = inputs, num_tokens
        self._padding = {name: buffer.padding(num_tokens) for name, buffer in inputs.rows.items()}

    def of(self, current: Mapping[str, Any]) -> dict[str, Any]:
        """The dummy inputs, with ``current`` block tables and rank-local rows in them.

        Raises ``ConfigError`` if an input without rows is missing, or a given one has fewer rows than needed.
        """
        for name in self._inputs.fixed:
            if name not in current:
                raise ConfigError(
                    f"an idle step needs the current {name!r}: its graph would read the last batch's, which "
                    "may point into blocks that were freed since"
                )
        given = {name: self._first_rows(name, value) for name, value in current.items()}
        return {**self._padding, **self._inputs.constants, **given}

    def _first_rows(self, name: str, value: Any) -> Any:
        buffer = self._inputs.rows.get(name)
        if buffer is None or not isinstance(value, Tensor):
            return value
        rows = buffer.rows_of(value)
        if rows < self.num_tokens:
            raise ConfigError(
                f"an idle step runs {self.num_tokens} tokens, input {name!r} brings only {rows} rows"
            )
        return value.narrow(buffer.dim, 0, self.num_tokens)
