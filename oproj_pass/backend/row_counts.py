"""How many rows a graph's sites get, computed from the inputs of a call before the graph runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from oproj_pass.config import OProjConfig
from oproj_pass.passes import Lookup, Site
from oproj_pass.passes.graph.provenance import value_of

Expression = Any  # of sympy, which has no types


@dataclass(frozen=True)
class ComparedRows:
    """Where ranks compare row counts: at each call, by ``counts``, and before each exchange ``in_graph``."""

    counts: "RowCounts | None"
    in_graph: bool

    @classmethod
    def of(cls, sites: Sequence[Site], inputs: Sequence[Node], config: OProjConfig) -> "ComparedRows":
        """What the options ask for; what no call's inputs tell is compared in the graph."""
        compares = config.agree_on_rows and config.capacity is None
        counts = RowCounts.of(sites, inputs) if compares else None
        return cls(counts, config.check_uniform or (compares and counts is None))

    @property
    def words(self) -> str:
        """When they are compared, for messages and for comparing ranks."""
        when = {"at each call": self.counts is not None, "before each exchange": self.in_graph}
        return " and ".join(time for time, holds in when.items() if holds) or "never"


class RowCounts:
    """The row count of each site of one graph, as a function of the graph's inputs.

    ``symbols``: where a call brings each symbol: an input's position, and the dimension if it is a tensor.
    """

    def __init__(
        self, by_path: Mapping[str, int | Expression], symbols: Mapping[Expression, tuple[int, int | None]]
    ) -> None:
        self._by_path, self._symbols = dict(by_path), dict(symbols)

    @classmethod
    def of(cls, sites: Sequence[Site], inputs: Sequence[Node]) -> "RowCounts | None":
        """The counts for a graph with the placeholders ``inputs``; None if the graph itself sets one."""
        by_path = {site.path: _rows(site) for site in sites}
        symbolic = [rows for rows in by_path.values() if not isinstance(rows, int)]
        needed = {symbol for rows in symbolic for symbol in rows.free_symbols}
        brought = {symbol: place for symbol, place in _symbols(inputs) if symbol in needed}
        return cls(by_path, brought) if needed == set(brought) else None

    def __call__(self, arguments: Sequence[Any]) -> dict[str, int]:
        """Row count by module path, for a call with these arguments."""
        values = {
            symbol: arguments[position] if dim is None else arguments[position].shape[dim]
            for symbol, (position, dim) in self._symbols.items()
        }
        return {path: _evaluate(rows, values) for path, rows in self._by_path.items()}


def _rows(site: Site) -> int | Expression:
    """Rows of a site's input: features [.., K], or ids."""
    shape = value_of(site.input).shape
    rows = prod(shape if isinstance(site, Lookup) else shape[:-1])
    return rows.node.expr if isinstance(rows, torch.SymInt) else rows


def _symbols(inputs: Sequence[Node]) -> Iterator[tuple[Expression, tuple[int, int | None]]]:
    for position, node in enumerate(inputs):
        value = value_of(node)
        if isinstance(value, torch.SymInt):
            yield value.node.expr, (position, None)
        elif isinstance(value, Tensor):
            for dim, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    yield size.node.expr, (position, dim)


def _evaluate(rows: int | Expression, values: Mapping[Expression, int]) -> int:
    if isinstance(rows, int):
        return rows
    return int(sympy_interp(PythonReferenceAnalysis, dict(values), rows))
