"""The memory that a split prefill reads: this rank's rows of every input, and all rows of some.

Filled anew for each step, a dummy one too, at addresses that never change. What a step does not fill is
padding, so nothing of the last batch survives.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from oproj_pass.capture import ContextBatch
from oproj_pass.errors import ConfigError
from oproj_pass.groups import ShardGroup
from oproj_pass.runtime.buffers import Pad, PersistentInputs
from oproj_pass.runtime.context_rows import ContextRows
from oproj_pass.runtime.idle import DummyBatch

_INDEX = "context.restore_index"  # no name that an input can have
_DUMMY_ROWS = 1


class ContextBuffers:
    """The persistent inputs of one rank of ``group``; None: it has every step to itself.

    ``whole``: the inputs of which the model reads all rows too. The others as for ``PersistentInputs``.
    """

    def __init__(
        self,
        example: Mapping[str, Any],
        rows: Mapping[str, int | None],
        whole: Collection[str],
        pad: Mapping[str, Pad],
        sizes: Sequence[int],
        group: ShardGroup | None,
    ) -> None:
        for name in whole:
            if rows.get(name) is None:
                raise ConfigError(f"`whole` names {name!r}, which has no row dimension in `rows`")
        self._group, self._pcp_size = group, group.size if group else 1
        self._rank = group.rank if group else 0
        self._local = PersistentInputs(example, rows, pad, sizes)
        self._dims = {name: buffer.dim for name, buffer in self._local.rows.items()}
        index = torch.zeros(1, dtype=torch.int64, device=self._local.device)
        self._whole = PersistentInputs(
            {_INDEX: index, **{name: example[name] for name in whole}},
            {_INDEX: 0, **{name: rows[name] for name in whole}},
            {name: pad[name] for name in whole if name in pad},
            [self._pcp_size * size for size in sizes],
        )
        self._dummy = DummyBatch(self._local, _DUMMY_ROWS)

    def count_tokens(self, inputs: Mapping[str, Any]) -> int:
        """Rows of the whole batch that the inputs bring; ``ConfigError`` unless every input fits."""
        return self._local.count_tokens(inputs)

    def dummy(self, current: Mapping[str, Any]) -> tuple[Mapping[str, Any], ContextBatch]:
        """The inputs of a step without requests, which counts as one decode; see ``DummyBatch.of``."""
        return self._dummy.of(current), ContextBatch(self._pcp_size, (_DUMMY_ROWS,), (False,))

    def fixed(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the inputs that have no rows, which a dummy batch needs as well."""
        return {name: inputs[name] for name in self._local.fixed}

    def load(
        self, inputs: Mapping[str, Any], batch: ContextBatch, size: int
    ) -> tuple[dict[str, Any], ContextRows]:
        """Fill the memory that a step of ``size`` rows reads; the model's arguments, and its context."""
        held = torch.tensor(batch.sources(self._rank))
        index = torch.tensor(batch.restore_indices(self._rank, size))
        local = {name: _picked(inputs[name], dim, held) for name, dim in self._dims.items()}
        self._local.load({**inputs, **local}, len(held), size)
        self._whole.load({**inputs, _INDEX: index}, len(index), self._pcp_size * size)
        constants = {name: inputs[name] for name in self._local.constants}
        views = self._whole.arguments(self._pcp_size * size)
        context = ContextRows(size, views.pop(_INDEX), views, self._group)
        return {**self._local.arguments(size), **constants}, context


def _picked(value: Tensor, dim: int, rows: Tensor) -> Tensor:
    return value.index_select(dim, rows.to(value.device))
