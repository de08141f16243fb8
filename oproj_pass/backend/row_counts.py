"""How many rows a graph's sites get, computed from the inputs of a call before the graph runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch.fx import Node

from oproj_pass.backend.symbols import BroughtSymbols, Expression, evaluate, expression_of
from oproj_pass.config import OProjConfig
from oproj_pass.passes import Lookup, Site
from oproj_pass.passes.graph.provenance import value_of


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
    """The row count of each site of one graph, as a function of the graph's inputs."""

    def __init__(self, by_path: Mapping[str, int | Expression], symbols: BroughtSymbols) -> None:
        self._by_path, self._symbols = dict(by_path), symbols

    @classmethod
    def of(cls, sites: Sequence[Site], inputs: Sequence[Node]) -> "RowCounts | None":
        """The counts for a graph with the placeholders ``inputs``; None if the graph itself sets one."""
        by_path = {site.path: row_count(site) for site in sites}
        symbols = BroughtSymbols.of(by_path.values(), inputs)
        return None if symbols is None else cls(by_path, symbols)

    def __call__(self, arguments: Sequence[Any]) -> dict[str, int]:
        """Row count by module path, for a call with these arguments."""
        values = self._symbols.values(arguments)
        return {path: evaluate(rows, values) for path, rows in self._by_path.items()}


def row_count(site: Site) -> int | Expression:
    """Rows of a site's input: features [.., K], or ids; an expression where they are symbolic."""
    shape = value_of(site.input).shape
    return expression_of(prod(shape if isinstance(site, Lookup) else shape[:-1]))
