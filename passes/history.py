"""Keeps what a sequence of passes did to a graph, and shows the graph between any two of them.

Decides nothing about the passes: ``run_passes`` runs and checks them. Snapshots hold text and integers only,
so a history outlives the graph; without them it is the table alone.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text
from torch.fx import GraphModule

from oproj_pass.errors import ConfigError
from oproj_pass.passes.contract import GraphPass, NearMiss, PassRecord
from oproj_pass.passes.diff import (
    GraphDiff,
    GraphSnapshot,
    SideBySide,
    compare_states,
    diff_graphs,
    snapshot,
)
from oproj_pass.passes.runner import run_passes


@dataclass(frozen=True)
class HistoryStep:
    """One pass of a sequence: module paths that it matched, what it nearly matched, nodes that it changed."""

    name: str
    matches: tuple[str, ...]
    near_misses: tuple[NearMiss, ...]
    num_changed: int
    seconds: float


class PassHistory:
    """Runs passes and keeps their history: state 0 is the graph as it came, state n the graph after pass n.

    ``snapshots``: keep every state, so that any two can be compared.

        history = PassHistory()
        history.run(gm, example_inputs, [ShardOProj(exchange), other_pass])
        history.diff(0, 2)

    A second ``run`` continues the sequence, on the same graph.
    """

    def __init__(self, *, snapshots: bool = True) -> None:
        self.snapshots = snapshots
        self.steps: list[HistoryStep] = []
        self._states: list[GraphSnapshot] = []

    def run(
        self, gm: GraphModule, example_inputs: Sequence[Any], passes: Sequence[GraphPass]
    ) -> list[PassRecord]:
        """``run_passes``, with every state recorded; raises what it raises, the states until then kept."""
        if self.snapshots and not self._states:
            self._states.append(snapshot(gm))

        def observe(record: PassRecord) -> None:
            self.steps.append(_step(record))
            if self.snapshots:
                self._states.append(snapshot(gm))

        return run_passes(gm, example_inputs, passes, observer=observe)

    def state(self, number: int) -> GraphSnapshot:
        """The graph after ``number`` passes; raises ``ConfigError`` for one that was not kept."""
        if not self.snapshots:
            raise ConfigError("this history keeps no states: make it with PassHistory(snapshots=True)")
        if not self._states:
            raise ConfigError("nothing has run yet: there is no state to show")
        if not 0 <= number < len(self._states):
            raise ConfigError(
                f"there is no state {number}: states are 0 (before any pass) to {len(self._states) - 1}"
            )
        return self._states[number]

    def diff(self, before: int, after: int) -> GraphDiff:
        """What changed between two states; raises ``ConfigError`` for one that was not kept."""
        return diff_graphs(self.state(before), self.state(after))

    def side_by_side(self) -> SideBySide:
        """All states next to each other, each node followed through them.

        Raises ``ConfigError`` where states were not kept, or no pass has run.
        """
        names = ["before", *(f"{number} {step.name}" for number, step in enumerate(self.steps, 1))]
        return compare_states([self.state(number) for number in range(len(names))], names)

    def to_dict(self) -> dict[str, Any]:
        """The sequence as JSON-ready values, without the states."""
        return {"steps": [asdict(step) for step in self.steps]}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("pass")
        for header in ("matched", "near misses", "nodes changed", "ms"):
            table.add_column(header, justify="right")
        for number, step in enumerate(self.steps, 1):
            counts = (len(step.matches), len(step.near_misses), step.num_changed)
            table.add_row(Text(f"{number} {step.name}"), *map(str, counts), f"{step.seconds * 1e3:.1f}")
        yield table


def _step(record: PassRecord) -> HistoryStep:
    return HistoryStep(
        name=record.name,
        matches=tuple(site.path for site in record.matches),
        near_misses=record.near_misses,
        num_changed=len(record.changed),
        seconds=record.seconds,
    )
