"""Progress of the long phases, on the error stream of rank 0, so that the output holds only results."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)


class Advance(Protocol):
    """Says how far a phase is."""

    def __call__(self, completed: int, note: str = "") -> None:
        """`completed` of the phase's total; `note` stands behind the bar."""


class Phases:
    """A bar for each phase, entered one after the other."""

    def __init__(self, visible: bool) -> None:
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description:<30}"),
            BarColumn(bar_width=16),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(file=sys.stderr),
            disable=not visible,
            redirect_stderr=False,
        )

    def __enter__(self) -> "Phases":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    @contextmanager
    def phase(self, description: str, total: int | None = None) -> Iterator["Advance"]:
        """Yield a function that sets how much of `total` is done, and a note; leaving completes the phase.

        Without a `total` the bar only shows that something is going on.
        """
        task = self._progress.add_task(description, total=total, note="")
        yield lambda completed, note="": self._progress.update(task, completed=completed, note=note)
        self._progress.update(task, completed=total or 1, total=total or 1, note="")
