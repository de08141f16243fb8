"""Symbolic sizes of a graph: which inputs of a call bring them, and what expressions of them are there."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from oproj_pass.passes.graph.provenance import value_of

Expression = Any  # of sympy, which has no types


@dataclass(frozen=True)
class BroughtSymbols:
    """``places``: where a call brings each symbol: an input's position, and the dimension of a tensor."""

    places: Mapping[Expression, tuple[int, int | None]]

    @classmethod
    def of(cls, expressions: Iterable[int | Expression], inputs: Sequence[Node]) -> "BroughtSymbols | None":
        """The symbols of ``expressions`` among the placeholders ``inputs``; None if the graph sets one."""
        symbolic = (size for size in expressions if not isinstance(size, int))
        needed = {symbol for size in symbolic for symbol in size.free_symbols}
        brought = {symbol: place for symbol, place in _places(inputs) if symbol in needed}
        return cls(brought) if needed == set(brought) else None

    def values(self, arguments: Sequence[Any]) -> dict[Expression, int]:
        """The symbols in a call with these arguments."""
        return {
            symbol: arguments[position] if dim is None else arguments[position].shape[dim]
            for symbol, (position, dim) in self.places.items()
        }


def expression_of(size: int | torch.SymInt) -> int | Expression:
    """A size as a number, or as an expression of symbols."""
    return size.node.expr if isinstance(size, torch.SymInt) else size


def evaluate(size: int | Expression, values: Mapping[Expression, int]) -> int:
    """An expression with numbers for its symbols."""
    if isinstance(size, int):
        return size
    return int(sympy_interp(PythonReferenceAnalysis, dict(values), size))


def _places(inputs: Sequence[Node]) -> Iterator[tuple[Expression, tuple[int, int | None]]]:
    for position, node in enumerate(inputs):
        value = value_of(node)
        if isinstance(value, torch.SymInt):
            yield value.node.expr, (position, None)
        elif isinstance(value, Tensor):
            for dim, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    yield size.node.expr, (position, dim)
