"""Advice as one page: the tables, plots and sources."""

from collections.abc import Iterable, Sequence
from importlib.resources import files

from oproj_pass.advisor.advice import Advice, Option
from oproj_pass.advisor.plots import Bar, Line, bar_plot, line_plot
from oproj_pass.advisor.tables import tables
from oproj_pass.advisor.text import headline, notes, verdict
from oproj_pass.advisor.workload import EXCHANGES
from oproj_pass.explanation.render import format_nbytes
from oproj_pass.passes.diff.document import document
from oproj_pass.passes.diff.markup import Markup, element

__all__ = ["to_html"]

_PLOTTED_TOKENS = 64


def to_html(advice: Advice) -> str:
    """The whole document."""
    style = Markup(files("oproj_pass.advisor").joinpath("page.css").read_text(encoding="utf-8"))
    return document(f"Advice: {advice.model} on {advice.profile.name}", style, *_body(advice))


def _body(advice: Advice) -> list[Markup]:
    model, _, rest = headline(advice).partition(": ")
    return [
        element("h1", None, model),
        element("p", {"class": "lead"}, rest),
        element("p", {"class": "verdict"}, verdict(advice)),
        *(
            _section(found.title, _table(found.headers, found.rows, found.text_columns, found.chosen))
            for found in tables(advice)
        ),
        element("div", {"class": "plots"}, *_plots(advice)),
        _traffic_section(advice),
        _section(
            "What this stands on", element("ul", None, *(element("li", None, note) for note in notes(advice)))
        ),
        *_published(advice),
        _section("Where each number comes from", _sources(advice)),
    ]


def _section(title: str, *children: Markup) -> Markup:
    return element("section", None, element("h2", None, title), element("div", {"class": "wide"}, *children))


def _plots(advice: Advice) -> list[Markup]:
    chosen = advice.recommendation.option or advice.options[0]
    defaults = [option for option in advice.options if option.is_default]
    limit = max(_PLOTTED_TOKENS, 4 * advice.setting.batch)
    return [
        _section("Change of a step over its tokens, by N", line_plot(
            [_line(option, number, option is chosen, limit) for number, option in enumerate(defaults)],
            unit="ms", name="Change of a step, in ms, over its tokens, a line for each N",
        ), element("p", {"class": "lead"}, "Row strategy. Below 0 a step is faster; the band is the range.")),
        _section("Memory of the projections on a rank, by N", bar_plot(
            [_memory_bar(option) for option in defaults], unit="GiB", name="Memory on a rank by N",
        ), _key(("kept", 4), ("communicator and buffers", 1), ("freed", 2))),
    ]  # fmt: skip


def _traffic_section(advice: Advice) -> Markup:
    chosen = advice.recommendation.option or advice.options[0]
    plot = bar_plot(_traffic(advice, chosen), unit="MiB", name="Bytes sent by layer", width=1060)
    return _section(f"Bytes a rank sends in a step, by layer ({chosen.label})", plot)


def _line(option: Option, number: int, is_chosen: bool, limit: int) -> Line:
    steps = [(tokens, step) for tokens, step in sorted(option.steps.items()) if tokens <= limit]
    ranges = [step.difference for _, step in steps] if is_chosen else []
    return Line(
        label=f"N = {option.size}",
        number=number % 4,
        points=[(tokens, step.difference.value) for tokens, step in steps],
        low=[found.low for found in ranges],
        high=[found.high for found in ranges],
    )


def _memory_bar(option: Option) -> Bar:
    memory, gib = option.memory, 2**30
    added = memory.saved_nbytes - memory.net_nbytes
    kept = memory.full_nbytes - memory.saved_nbytes
    freed = max(memory.net_nbytes, 0)
    return Bar(
        label=f"N = {option.size}",
        parts=[(4, kept / gib), (1, added / gib), (2, freed / gib)],
        title=f"N = {option.size}: {format_nbytes(kept)} kept, {format_nbytes(added)} for communicator and "
        f"buffers, {format_nbytes(memory.net_nbytes)} freed net",
        value=f"{memory.net_nbytes / gib:.2f} freed",
    )


def _traffic(advice: Advice, option: Option) -> list[Bar]:
    sent: dict[str, int] = {}
    for site in advice.sites:
        strategy = next(row for row in EXCHANGES[site.shape.role] if row.name == option.strategy)
        work = strategy.work(site.shape, advice.setting.batch, option.size)
        sent[site.layer] = sent.get(site.layer, 0) + work.sent_nbytes * site.shape.count
    return [
        Bar(layer.rpartition(".")[2], [(0, nbytes / 2**20)], f"{layer}: {format_nbytes(nbytes)}")
        for layer, nbytes in sent.items()
    ]


def _published(advice: Advice) -> list[Markup]:
    if not advice.deviations:
        return []
    rows = [
        (
            deviation.point.what,
            _published_range(deviation.point.low, deviation.point.high),
            f"{deviation.predicted:+.2f}",
            f"{deviation.error:.2f}",
            "sets a constant" if deviation.point.used else "held out",
            deviation.point.note,
        )
        for deviation in advice.deviations
    ]
    heads = ("published, ms a step", "published", "predicted", "off by", "use", "note")
    return [_section("Error on the published points", _table(heads, rows, (0, 4, 5)))]


def _published_range(low: float, high: float) -> str:
    return f"{low:+.2f}" if low == high else f"{low:+.2f} to {high:+.2f}"


def _sources(advice: Advice) -> Markup:
    rows = [(name, basis.value, source) for name, source, basis in advice.profile.figures()]
    return _table(("figure", "basis", "source"), rows, (0, 1, 2))


def _key(*entries: tuple[str, int]) -> Markup:
    return element("ul", {"class": "key"}, *(element("li", {"class": f"s{n}"}, text) for text, n in entries))


def _table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    text_columns: Sequence[int],
    chosen: int | None = None,
) -> Markup:
    def row(tag: str, values: Sequence[str], kind: str = "") -> Markup:
        found = [
            element(tag, {"class": _class(number in text_columns, value)}, value)
            for number, value in enumerate(values)
        ]
        return element("tr", {"class": kind} if kind else None, *found)

    body = [row("td", values, "chosen" if number == chosen else "") for number, values in enumerate(rows)]
    return element("table", None, element("thead", None, row("th", heads)), element("tbody", None, *body))


def _class(is_text: bool, value: str) -> str:
    return ("text long" if len(value) > 40 else "text") if is_text else "number"
