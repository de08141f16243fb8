"""Persistent inputs: the tensors that captured graphs read, at addresses that never change.

Each input has one buffer, as large as the largest captured size needs; a smaller size reads the beginning of
the same memory, contiguous whatever dimension holds the rows. Which inputs have rows, and where, is declared,
never guessed: a square input, or a table that happens to be as long as the batch, would be padded wrongly.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from oproj_pass.errors import ConfigError
from oproj_pass.profiling import profiled
from oproj_pass.runtime.constants import is_same_constant, require_constant

Pad = int | float | bool

_REMEMBERED_SHAPES = 64  # steps of one load follow each other, and judging or slicing anew is slower


class RowBuffer:
    """The memory of one input that has a row for each token."""

    def __init__(self, name: str, example: Tensor, dim: int, pad: Pad, sizes: Iterable[int]) -> None:
        self.name, self.dim, self.dtype = name, dim, example.dtype
        self.device, self._shape = example.device, tuple(example.shape)
        sizes = sorted(sizes)
        flat = torch.empty(self._count(sizes[-1]), dtype=example.dtype, device=example.device)
        self.views = {size: flat[: self._count(size)].view(self._shape_of(size)) for size in sizes}
        flat.fill_(pad)
        self._padding = torch.full((), pad, dtype=self.dtype, device=self.device)

    def rows_of(self, value: Any) -> int:
        """Rows that ``value`` brings; raises ``ConfigError`` if it cannot fill this buffer."""
        _require_tensor(self.name, value, self.dtype)
        shape = value.shape
        rows = shape[self.dim] if len(shape) == len(self._shape) else -1
        if shape != self._shape_of(rows):
            wanted = ["num_tokens" if d == self.dim else str(n) for d, n in enumerate(self._shape)]
            raise ConfigError(
                f"input {self.name!r} has shape {tuple(shape)}, required is ({', '.join(wanted)}) as in the "
                "example it was captured with"
            )
        return int(rows)

    def parts(self, rows: int, size: int) -> tuple[Tensor, ...]:
        """The first ``rows`` rows of the memory that the graph of ``size`` reads, and the others."""
        return self.views[size].split_with_sizes([rows, size - rows], self.dim)

    def padding(self, rows: int) -> Tensor:
        """A value of ``rows`` rows of padding, in the memory of one element."""
        return self._padding.expand(self._shape_of(rows))

    def _shape_of(self, rows: int) -> tuple[int, ...]:
        return (*self._shape[: self.dim], rows, *self._shape[self.dim + 1 :])

    def _count(self, rows: int) -> int:
        return torch.Size(self._shape_of(rows)).numel()


class FixedBuffer:
    """The memory of one tensor input whose shape does not follow the batch, such as a block table."""

    def __init__(self, name: str, example: Tensor) -> None:
        self.name = name
        self.tensor = example.clone(memory_format=torch.contiguous_format)

    def require_fitting(self, value: Any) -> None:
        """Raise ``ConfigError`` unless ``value`` can replace this buffer's contents."""
        _require_tensor(self.name, value, self.tensor.dtype)
        if value.shape != self.tensor.shape:
            raise ConfigError(
                f"input {self.name!r} has shape {tuple(value.shape)}, captured with "
                f"{tuple(self.tensor.shape)}, and is declared to have no row dimension. Pass it padded to "
                "that shape, or declare its row dimension in `rows`"
            )


class PersistentInputs:
    """All inputs of a callable by name: row buffers, fixed buffers and constants.

    Args:
        example: a value for every input; row-shaped ones with any number of rows.
        rows: for each tensor input the dimension that holds the rows, or None if none does.
        pad: what unused rows hold, 0 unless given (such as -1 for slots, so that padding writes nothing).
        sizes: the captured sizes.

    Raises:
        ConfigError: the declaration does not fit the example; names the input.
    """

    def __init__(
        self,
        example: Mapping[str, Any],
        rows: Mapping[str, int | None],
        pad: Mapping[str, Pad],
        sizes: Iterable[int],
    ) -> None:
        sizes = tuple(sizes)
        _require_declared(example, rows, pad)
        with torch.inference_mode(False), torch.no_grad():  # whatever the caller's mode: steps have their own
            self.rows = {
                name: RowBuffer(
                    name, example[name], _dimension(name, example[name], dim), pad.get(name, 0), sizes
                )
                for name, dim in rows.items()
                if dim is not None
            }
            self.fixed = {name: FixedBuffer(name, example[name]) for name, dim in rows.items() if dim is None}
        self.constants = {name: value for name, value in example.items() if name not in rows}
        self._names = frozenset(example)
        self._tensors = (*self.rows, *self.fixed)
        self._fitting: dict[tuple[Any, ...], int] = {}
        self._destinations = lru_cache(_REMEMBERED_SHAPES)(self._split)
        self.count_tokens(example)

    @property
    def device(self) -> torch.device:
        """Where the row-shaped inputs live."""
        return next(iter(self.rows.values())).device

    def count_tokens(self, inputs: Mapping[str, Any]) -> int:
        """Rows that the inputs bring; raises ``ConfigError`` unless every input fits and all agree."""
        if inputs.keys() != self._names:
            raise ConfigError(
                f"inputs are {sorted(inputs)}, captured with {sorted(self._names)}: bring the same names"
            )
        forms: list[Any] = []
        for name in self._tensors:
            value = inputs[name]
            forms += (value.shape, value.dtype) if isinstance(value, Tensor) else (None, None)
        num_tokens = self._fitting.get(known := tuple(forms))
        if num_tokens is None:
            if len(self._fitting) == _REMEMBERED_SHAPES:
                self._fitting.clear()
            num_tokens = self._fitting[known] = self._count_tokens(inputs)
        return num_tokens

    def _count_tokens(self, inputs: Mapping[str, Any]) -> int:
        counts = [buffer.rows_of(inputs[name]) for name, buffer in self.rows.items()]
        num_tokens = counts[0]
        if counts.count(num_tokens) != len(counts):
            listed = ", ".join(f"{name} {count}" for name, count in zip(self.rows, counts, strict=True))
            raise ConfigError(
                f"inputs bring different token counts: {listed}. Every row-shaped input needs one row for "
                "each token (a padded draft pads all of them); declare another dimension, or None, in `rows` "
                "for one that has other rows"
            )
        for name, fixed in self.fixed.items():
            fixed.require_fitting(inputs[name])
        return num_tokens

    def changed_constant(self, inputs: Mapping[str, Any]) -> str | None:
        """The first constant that differs from the captured one, in words; graphs hold the captured one.

        Raises ``ConfigError`` for one that now holds a tensor.
        """
        for name, captured in self.constants.items():
            value = inputs[name]
            if value is not captured and not is_same_constant(name, value, captured):
                return (
                    f"input {name!r} is {value!r}, the graphs were captured with {captured!r}. Pass it as a "
                    "tensor, declared in `rows` (None: it has no rows), or build a runner for each value"
                )
        return None

    @profiled("oproj_pass::copy_inputs")
    def load(self, inputs: Mapping[str, Any], num_tokens: int, size: int) -> None:
        """Copy the inputs into the memory that the graph of ``size`` reads, padding the other rows."""
        destinations, padding = self._destinations(num_tokens, size)
        torch._foreach_copy_(destinations, [*map(inputs.__getitem__, self._tensors), *padding])

    def _split(self, num_tokens: int, size: int) -> tuple[list[Tensor], list[Tensor]]:
        """Where the values of a step go, then its padding, and that padding."""
        parts = [buffer.parts(num_tokens, size) for buffer in self.rows.values()]
        destinations = [head for head, _ in parts] + [fixed.tensor for fixed in self.fixed.values()]
        if num_tokens == size:
            return destinations, []
        padding = [buffer.padding(size - num_tokens) for buffer in self.rows.values()]
        return destinations + [tail for _, tail in parts], padding

    def arguments(self, size: int) -> dict[str, Any]:
        """The arguments of a call of ``size`` rows: the persistent tensors and the constants."""
        return {
            **{name: buffer.views[size] for name, buffer in self.rows.items()},
            **{name: fixed.tensor for name, fixed in self.fixed.items()},
            **self.constants,
        }


def count_rows(inputs: Mapping[str, Any], rows: Mapping[str, int | None]) -> int:
    """Rows of the first row-shaped input, for runs that need no captured graph."""
    name, dim = next((name, dim) for name, dim in rows.items() if dim is not None)
    return int(inputs[name].shape[dim])


def _require_tensor(name: str, value: Any, dtype: torch.dtype) -> None:
    if not isinstance(value, Tensor):
        raise ConfigError(f"input {name!r} is a {type(value).__name__}, captured as a tensor")
    if value.dtype is not dtype:
        raise ConfigError(f"input {name!r} is {value.dtype}, captured with {dtype}")


def _require_declared(
    example: Mapping[str, Any], rows: Mapping[str, int | None], pad: Mapping[str, Pad]
) -> None:
    for name in rows:
        if not isinstance(example.get(name), Tensor):
            raise ConfigError(f"`rows` declares {name!r}, which is not a tensor among {sorted(example)}")
    for name, value in example.items():
        if isinstance(value, Tensor) and name not in rows:
            raise ConfigError(
                f"tensor input {name!r} of shape {tuple(value.shape)} is not declared: say in `rows` which "
                "of its dimensions holds a row for each token, or None if no dimension does"
            )
        if name not in rows:
            require_constant(name, value)
    if all(dim is None for dim in rows.values()):
        raise ConfigError("`rows` declares no input with rows, so a step has no token count")
    for name in pad:
        if rows.get(name) is None:
            raise ConfigError(f"`pad` gives a value for {name!r}, which has no row dimension in `rows`")


def _dimension(name: str, example: Tensor, dim: int) -> int:
    if not -example.dim() <= dim < example.dim():
        raise ConfigError(
            f"`rows` declares dimension {dim} of {name!r}, whose shape is {tuple(example.shape)}"
        )
    return dim % example.dim()
