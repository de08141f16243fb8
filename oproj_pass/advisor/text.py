"""Advice in words for a terminal: its tables, one recommendation, how far to trust each figure."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from oproj_pass.advisor.advice import Advice
from oproj_pass.advisor.figures import Basis
from oproj_pass.advisor.published import Deviation
from oproj_pass.advisor.tables import tables
from oproj_pass.explanation.render import folded_misses, format_nbytes

__all__ = ["headline", "notes", "to_rich", "verdict"]


@dataclass(frozen=True)
class _Prose:
    """A sentence that a terminal breaks between words; in a file it is one line."""

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = Text(self.text, self.style)
        if console.is_terminal:
            text.no_wrap, text.overflow = False, "fold"
        yield text


def to_rich(advice: Advice) -> RenderableType:
    """The advice for a terminal of 80 columns."""
    parts: list[RenderableType] = [_Prose(headline(advice), "bold"), Text()]
    for table in tables(advice):
        parts += [table.to_rich(), Text()]
    return Group(*parts, _Prose(verdict(advice), "bold"), Text(), *map(_Prose, notes(advice)))


def headline(advice: Advice) -> str:
    """The model and the machine."""
    full = advice.options[0].memory.full_nbytes
    schemes = ", ".join(dict.fromkeys(site.scheme for site in advice.sites))
    return (
        f"{advice.model} on {advice.profile.title}: {len(advice.sites)} output projections ({schemes}), "
        f"{format_nbytes(full)} on every rank"
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
    yield (
        f"Saved and sent bytes are exact. {chosen.label} needs {format_nbytes(memory.communicator_nbytes)} "
        f"for a communicator and {format_nbytes(memory.buffer_nbytes)} of exchange buffers at "
        f"{setting.captured[-1]} tokens, both predicted; net and KV tokens are those of the strategy of an N "
        "that needs most."
    )
    if (bought := advice.bought(chosen)) is not None:
        yield (
            f"{chosen.label} buys {bought.tokens:,} KV tokens: {bought.sequences:,} sequences of "
            f"{setting.sequence_length:,}, {bought.blocks:,} blocks of {setting.block_size}."
        )
        if bought.kv_cache_memory_bytes is not None:
            yield f"for vLLM: --kv-cache-memory-bytes {bought.kv_cache_memory_bytes}"
    yield (
        "ms: how much longer a step takes, and its range. Sent: bytes that leave a rank in the step. "
        "Turns at: tokens from which a step is slower."
    )
    yield from _strategies_by_size(advice)
    yield _trust(advice)
    for size, reason in advice.misfits.items():
        yield f"N = {size} is left out: {reason}."
    if advice.draft_layers:
        yield f"{advice.draft_layers} draft layer(s) are not counted: the backend leaves them alone."
    for path, reason, _ in folded_misses(advice.near_misses):
        yield f"Left alone: {path} {reason}."


def _strategies_by_size(advice: Advice) -> Iterator[str]:
    by_size = {tokens: option.strategy for tokens, option in advice.recommendation.by_size.items()}
    if len(set(by_size.values())) > 1:
        listed = "; ".join(f"{tokens}: {name}" for tokens, name in by_size.items())
        yield (
            f"Fastest by captured size, with the weights cut alike: {listed}. "
            "A plan takes them from --json: oproj plan --strategies FILE."
        )


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
    worst = max(deviation.error for deviation in advice.deviations)
    wrong = [deviation for deviation in advice.deviations if not deviation.has_right_sign]
    signs = len(advice.deviations) - len(wrong)
    return (
        f"{text} Published points of this machine: {len(advice.deviations)}, {signs} with the right sign, at "
        f"most {worst:.2f} ms off; {len(proving)} of them set no constant."
        + "".join(f" {_contradiction(deviation)}" for deviation in wrong)
    )


def _contradiction(deviation: Deviation) -> str:
    point = deviation.point
    return (
        f"Do not trust the sign for {point.what}: {(point.low + point.high) / 2:+.2f} ms was published, "
        f"{deviation.predicted:+.2f} is predicted" + (f" ({point.note})." if point.note else ".")
    )
