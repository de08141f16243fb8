"""Advice for a terminal: a table over N and strategy, one recommendation, how far to trust each figure."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from oproj_pass.advisor.advice import Advice, Option
from oproj_pass.advisor.figures import Basis, Range
from oproj_pass.explanation.render import format_nbytes
from oproj_pass.passes.sites.options import ROLE_TITLES

__all__ = [
    "HEADERS",
    "ROLE_HEADERS",
    "TEXT_COLUMNS",
    "cells",
    "format_ms",
    "headline",
    "notes",
    "role_cells",
    "to_rich",
    "verdict",
]

HEADERS = (
    "N", "strategy", "saved", "net", "KV tokens", "ms a step", "range", "sent", "bound by", "turns at"
)  # fmt: skip
TEXT_COLUMNS = (1, 8)
ROLE_HEADERS = ("N", "role", "sites", "full", "saved", "ms a step", "range", "bound by")


def to_rich(advice: Advice) -> RenderableType:
    """The advice for a terminal."""
    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left", title=_title(advice))
    for number, header in enumerate(HEADERS):
        is_text = number in TEXT_COLUMNS
        table.add_column(header, justify="left" if is_text else "right", no_wrap=True)
    for option in advice.options:
        style = "bold" if option is advice.recommendation.option else ""
        table.add_row(*map(Text, cells(advice, option)), style=style)
    parts: list[RenderableType] = [Text(headline(advice), style="bold"), Text(), table]
    if advice.roles:
        parts += [Text(), _roles(advice)]
    lines = [Text(), Text(verdict(advice), style="bold"), Text(), *map(Text, notes(advice))]
    return Group(*parts, *lines)


def role_cells(advice: Advice) -> list[tuple[str, ...]]:
    """The rows of the other roles, below ``ROLE_HEADERS``."""
    return [
        (
            str(option.size),
            ROLE_TITLES[option.role],
            str(option.sites),
            format_nbytes(option.full_nbytes),
            format_nbytes(option.saved_nbytes),
            format_ms(option.step.difference.value),
            _bounds(option.step.difference),
            option.step.bound,
        )
        for option in advice.roles
    ]


def _roles(advice: Advice) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left", title="The rest of the family")
    for number, header in enumerate(ROLE_HEADERS):
        table.add_column(header, justify="left" if number in (1, 7) else "right", no_wrap=True)
    for row in role_cells(advice):
        table.add_row(*map(Text, row))
    return table


def headline(advice: Advice) -> str:
    """The model and the machine."""
    full = advice.options[0].memory.full_nbytes
    schemes = ", ".join(dict.fromkeys(site.scheme for site in advice.sites))
    return (
        f"{advice.model} on {advice.profile.title}: {len(advice.sites)} output projections ({schemes}), "
        f"{format_nbytes(full)} on every rank"
    )


def cells(advice: Advice, option: Option) -> tuple[str, ...]:
    """An option's row, below ``HEADERS``."""
    step, bought = advice.step(option), advice.bought(option)
    return (
        str(option.size),
        option.strategy,
        format_nbytes(option.memory.saved_nbytes),
        format_nbytes(option.memory.net_nbytes),
        "" if bought is None else f"{bought.tokens:,}",
        format_ms(step.difference.value),
        _bounds(step.difference),
        format_nbytes(step.sent_nbytes),
        step.bound,
        "" if option.turns_at is None else str(option.turns_at),
    )


def verdict(advice: Advice) -> str:
    """The recommendation in words."""
    found = advice.recommendation
    if found.option is None:
        return f"Recommended: do not shard; {found.reason}."
    return f"Recommended: {found.option.label}; {found.reason}."


def notes(advice: Advice) -> Iterator[str]:
    """What the figures stand on, one finding a line."""
    chosen = advice.recommendation.option or advice.options[0]
    setting, memory = advice.setting, chosen.memory
    layers = advice.break_even_layers(chosen.size)
    yield (
        f"Saved and sent bytes are exact. Net of {format_nbytes(memory.communicator_nbytes)} for a "
        f"communicator and {format_nbytes(memory.buffer_nbytes)} of exchange buffers at "
        f"{setting.captured[-1]} tokens, both predicted"
        + (f"; {chosen.label} pays from {layers:.1f} layers on." if layers else ".")
    )
    if (bought := advice.bought(chosen)) is not None:
        yield (
            f"{chosen.label} buys {bought.tokens:,} KV tokens: {bought.sequences:,} sequences of "
            f"{setting.sequence_length:,}, {bought.blocks:,} blocks of {setting.block_size}."
        )
        if bought.kv_cache_memory_bytes is not None:
            yield f"for vLLM: --kv-cache-memory-bytes {bought.kv_cache_memory_bytes}"
    yield "Sent: bytes that leave a rank in the step. Turns at: tokens from which a step is slower."
    yield from _strategies_by_size(advice)
    yield _trust(advice)
    for size, reason in advice.misfits.items():
        yield f"N = {size} is left out: {reason}."
    if advice.draft_layers:
        yield f"{advice.draft_layers} draft layer(s) are not counted: the backend leaves them alone."
    if advice.near_misses:
        yield f"{len(advice.near_misses)} other layers are left alone; `oproj explain` says why."


def format_ms(value: float) -> str:
    """`+1.29`."""
    return f"{value:+.2f}"


def _title(advice: Advice) -> str:
    setting = advice.setting
    return f"A step of {setting.batch} tokens a rank, against the unsharded step"


def _bounds(found: Range) -> str:
    return f"{format_ms(found.low)} .. {format_ms(found.high)}"


def _strategies_by_size(advice: Advice) -> Iterator[str]:
    by_size = advice.recommendation.by_size
    if len(set(by_size.values())) > 1:
        listed = ", ".join(f"{tokens}: {name}" for tokens, name in by_size.items())
        yield f"Fastest strategy by captured size: {listed}."


def _trust(advice: Advice) -> str:
    basis = set().union(*(advice.step(option).basis for option in advice.options))
    origin = (
        "from measured tables"
        if basis == {Basis.MEASURED}
        else "from measured tables and formulas"
        if Basis.MEASURED in basis
        else "from published constants"
    )
    text = f"Times are predicted {origin} of {advice.profile.name}; no overlap, no waiting for a slower rank."
    if not advice.deviations:
        return f"{text} No published measurement of the feature on this machine is known."
    proving = [deviation for deviation in advice.deviations if not deviation.point.used]
    worst = max((deviation.error for deviation in advice.deviations), default=0.0)
    signs = sum(deviation.has_right_sign for deviation in advice.deviations)
    return (
        f"{text} Published points of this machine: {len(advice.deviations)}, {signs} with the right sign, at "
        f"most {worst:.2f} ms off; {len(proving)} of them set no constant."
    )
