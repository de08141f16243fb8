"""What a model whose rows are split knows of all rows of its step: where they are, and how to get them.

Local values have ``size`` rows and whole ones P times as many, so that neither is ever taken for the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from oproj_pass.errors import ConfigError
from oproj_pass.groups import ShardGroup

_functional = torch.ops._c10d_functional


@dataclass(frozen=True)
class ContextRows:
    """All rows of a step, for one of the ranks that share them.

    Attributes:
        size: rows of every rank, its padding included.
        restore_index: [P * size], where each row of the whole batch is among the rows of all ranks, gathered
            in rank order; behind the batch, any row.
        inputs: those declared ``whole``: P * size rows each, in the order of the batch, then padding.
        group: the ranks that share the step; None for one that has it to itself.
    """

    size: int
    restore_index: Tensor
    inputs: Mapping[str, Tensor]
    group: ShardGroup | None

    def __getitem__(self, name: str) -> Tensor:
        """All rows of an input."""
        return self.inputs[name]

    def whole(self, rows: Tensor, dim: int = 0) -> Tensor:
        """All rows of a local value [.., size, ..], in the order of the batch: [.., P * size, ..].

        Every rank of the group has to call it, as for keys and values. Raises ``ConfigError`` for a value
        that has other rows, such as one that is whole.
        """
        return self._in_order(rows, dim, self.restore_index)

    def restored(self, rows: Tensor, dim: int, num_tokens: int) -> Tensor:
        """The first ``num_tokens`` rows of ``whole``."""
        return self._in_order(rows, dim, self.restore_index[:num_tokens])

    def _in_order(self, rows: Tensor, dim: int, index: Tensor) -> Tensor:
        if rows.shape[dim] != self.size:
            raise ConfigError(
                f"a value of shape {tuple(rows.shape)} has {rows.shape[dim]} rows in dimension {dim}, this "
                f"rank's part of the step has {self.size}: gather local rows, and only once"
            )
        return self._gathered(rows.movedim(dim, 0)).index_select(0, index).movedim(0, dim)

    def _gathered(self, rows: Tensor) -> Tensor:
        if self.group is None:
            return rows
        name = self.group.device.group_name
        gathered = _functional.all_gather_into_tensor(rows.contiguous(), self.group.size, name)
        return _functional.wait_tensor(gathered)  # type: ignore[no-any-return]
