"""The tables of an advice, in 80 columns or on the page: memory, a step's time, the other roles."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from oproj_pass.advisor.advice import Advice, Option
from oproj_pass.advisor.figures import Range
from oproj_pass.explanation.render import format_nbytes
from oproj_pass.passes.sites.options import ROLE_TITLES

__all__ = ["Rows", "tables"]


@dataclass(frozen=True)
class Rows:
    """One table; ``text_columns``: those that are no numbers; ``chosen``: the row that is recommended."""

    title: str
    headers: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    text_columns: tuple[int, ...] = ()
    chosen: int | None = None

    def to_rich(self) -> Table:
        """The table for a terminal; no cell is broken."""
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, title_justify="left", title=self.title)
        for number, header in enumerate(self.headers):
            table.add_column(header, justify="left" if number in self.text_columns else "right", no_wrap=True)
        for number, row in enumerate(self.rows):
            table.add_row(*map(Text, row), style="bold" if number == self.chosen else "")
        return table


def tables(advice: Advice) -> Iterator[Rows]:
    """Memory by N, time by N and strategy, and the other roles where there are any."""
    yield _memory(advice)
    yield _time(advice)
    if advice.roles:
        yield _roles(advice)


def _memory(advice: Advice) -> Rows:
    sizes = list(dict.fromkeys(option.size for option in advice.options))
    chosen = advice.recommendation.option
    return Rows(
        title="Memory of the projections on a rank",
        headers=("N", "saved", "net", "KV tokens", "pays from"),
        rows=[_memory_row(advice, size) for size in sizes],
        chosen=sizes.index(chosen.size) if chosen else None,
    )


def _memory_row(advice: Advice, size: int) -> tuple[str, ...]:
    """By the strategy that frees least, for they differ in little but their buffers."""
    options = [option for option in advice.options if option.size == size]
    least = min(options, key=lambda option: option.memory.net_nbytes)
    bought, layers = advice.bought(least), advice.break_even_layers(size)
    return (
        str(size),
        format_nbytes(least.memory.saved_nbytes),
        format_nbytes(least.memory.net_nbytes),
        "" if bought is None else f"{bought.tokens:,}",
        "" if layers is None else f"{layers:.1f} layers",
    )


def _time(advice: Advice) -> Rows:
    chosen = advice.recommendation.option
    return Rows(
        title=f"A step of {advice.setting.batch} tokens a rank, against the unsharded step",
        headers=("N", "strategy", "ms", "range", "sent", "bound by", "turns at"),
        rows=[_time_row(advice, option) for option in advice.options],
        text_columns=(1, 5),
        chosen=advice.options.index(chosen) if chosen else None,
    )


def _time_row(advice: Advice, option: Option) -> tuple[str, ...]:
    step = advice.step(option)
    return (
        str(option.size),
        option.strategy,
        _ms(step.difference.value),
        _bounds(step.difference),
        format_nbytes(step.sent_nbytes),
        step.bound,
        "" if option.turns_at is None else str(option.turns_at),
    )


def _roles(advice: Advice) -> Rows:
    return Rows(
        title="The rest of the family",
        headers=("N", "role", "sites", "full", "saved", "ms", "range", "bound by"),
        rows=[
            (
                str(option.size),
                ROLE_TITLES[option.role],
                str(option.sites),
                format_nbytes(option.full_nbytes),
                format_nbytes(option.saved_nbytes),
                _ms(option.step.difference.value),
                _bounds(option.step.difference),
                option.step.bound,
            )
            for option in advice.roles
        ],
        text_columns=(1, 7),
    )


def _ms(value: float) -> str:
    return f"{value:+.2f}"


def _bounds(found: Range) -> str:
    return f"{_ms(found.low)} .. {_ms(found.high)}"
