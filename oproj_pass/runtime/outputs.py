"""Cuts the padding off what a captured graph returned.

Which dimension of an output holds the rows is declared (the first one by default) and checked against every
captured size, so that an output of another layout is an error at capture and never a wrong cut.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from oproj_pass.errors import ConfigError

RowDims = int | None | Sequence[int | None]


class Outputs:
    """How to trim a callable's result: a tensor, or tensors in (nested) tuples, lists and mappings.

    Args:
        rows: the dimension that holds the rows: one for every tensor of the result, or one for each in order;
            None for a tensor that is returned whole.
    """

    def __init__(self, rows: RowDims = 0) -> None:
        self._rows = rows
        self._first = next(iter(rows), None) if isinstance(rows, Sequence) else rows

    def require_fitting(self, output: Any, size: int) -> None:
        """Raise ``ConfigError`` unless every declared dimension of ``output`` has ``size`` rows."""
        leaves = pytree.tree_leaves(output)
        if isinstance(self._rows, Sequence) and len(self._rows) != len(leaves):
            raise ConfigError(f"`output_rows` has {len(self._rows)} entries, the result {len(leaves)} values")
        for position, (leaf, dim) in enumerate(zip(leaves, self._dims(leaves), strict=True)):
            if not isinstance(leaf, Tensor) or dim is None:
                continue
            if not -leaf.dim() <= dim < leaf.dim() or leaf.shape[dim] != size:
                raise ConfigError(
                    f"output {position} has shape {tuple(leaf.shape)} when {size} rows are captured, so its "
                    f"dimension {dim} does not hold the rows: declare `output_rows` (None: not row-shaped)"
                )

    def trim(self, output: Any, num_tokens: int, size: int) -> Any:
        """The result without rows at or past ``num_tokens``; views of the graph's memory."""
        if num_tokens == size:
            return output
        if isinstance(output, Tensor):  # sliced in half the time that `narrow` takes
            return output[:num_tokens] if self._first == 0 else _cut(output, self._first, num_tokens)
        return self.changed(output, lambda leaf, dim: _cut(leaf, dim, num_tokens))

    def changed(self, output: Any, change: Callable[[Any, int | None], Any]) -> Any:
        """The result with each of its values replaced by ``change`` of it and of its dimension of rows."""
        leaves, spec = pytree.tree_flatten(output)
        changed = [change(leaf, dim) for leaf, dim in zip(leaves, self._dims(leaves), strict=True)]
        return pytree.tree_unflatten(changed, spec)

    def _dims(self, leaves: Sequence[Any]) -> Sequence[int | None]:
        return self._rows if isinstance(self._rows, Sequence) else [self._rows] * len(leaves)


def _cut(leaf: Any, dim: int | None, num_tokens: int) -> Any:
    return leaf.narrow(dim, 0, num_tokens) if isinstance(leaf, Tensor) and dim is not None else leaf
