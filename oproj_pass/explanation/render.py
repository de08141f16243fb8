"""An explain report for people: tables in a terminal, HTML in a notebook. Nothing found is ever markup.

Decides what is folded (equal projections of consecutive layers are one line) and in which units bytes are.
"""

import html
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from oproj_pass.explanation.by_role import saved_as_configured
from oproj_pass.explanation.explained import Explained
from oproj_pass.explanation.row import ProjectionRow
from oproj_pass.explanation.traffic import COMMUNICATION_BUFFER_NBYTES
from oproj_pass.passes import NearMiss
from oproj_pass.passes.diff.graph_snapshot import NodeSnapshot
from oproj_pass.passes.diff.labels import fold_paths, format_value
from oproj_pass.passes.sites.options import ROLE_TITLES


@dataclass(frozen=True)
class _Section:
    """One table; ``text_columns`` leading columns are text, the others numbers."""

    title: str
    headers: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    text_columns: int


def to_rich(report: Explained) -> RenderableType:
    """The report for a terminal."""
    parts: list[RenderableType] = [Text(headline(report), style="bold")]
    for section in _sections(report):
        if section.rows:
            parts += [Text(), _table(section)]
    parts += [Text(), *map(Text, _notes(report))]
    return Group(*parts)


def to_html(report: Explained) -> str:
    """The report as one HTML fragment."""
    parts = [f"<p><b>{html.escape(headline(report))}</b></p>"]
    for section in _sections(report):
        if section.rows:
            rows = "".join(_html_row("td", row) for row in section.rows)
            parts.append(f"<p>{html.escape(section.title)}</p>")
            parts.append(f"<table>{_html_row('th', section.headers)}{rows}</table>")
    parts += [f"<p>{html.escape(note)}</p>" for note in _notes(report)]
    return "".join(parts)


def format_nbytes(nbytes: int) -> str:
    """``0.109 GiB``, ``12.5 MiB``, ``3.0 KiB``, ``96 B``: GiB from a tenth of one on."""
    if abs(nbytes) >= 2**30 / 10:
        return f"{nbytes / 2**30:.3f} GiB"
    if abs(nbytes) >= 2**20:
        return f"{nbytes / 2**20:.1f} MiB"
    return f"{nbytes / 2**10:.1f} KiB" if abs(nbytes) >= 2**10 else f"{nbytes} B"


def folded_misses(misses: Iterable[NearMiss]) -> Iterator[tuple[str, str, int]]:
    """Where, why and how many bytes each: those of consecutive layers in one."""
    groups: dict[tuple[str, int], list[str]] = defaultdict(list)
    for miss in misses:
        groups[miss.reason, miss.nbytes].append(miss.path)
    for (reason, nbytes), paths in groups.items():
        for path in fold_paths(paths):
            yield path, reason, nbytes


def headline(report: Explained) -> str:
    """The report in one line."""
    graphs = f"{report.num_graphs} graph{'' if report.num_graphs == 1 else 's'}"
    breaks = f", {len(report.graph_breaks)} graph break(s)" if report.graph_breaks else ""
    numbers = Counter(row.role for row in report.projections) or {"oproj": 0}
    titles = {role: ROLE_TITLES[role].removeprefix("attention ") for role in numbers}
    sites = ", ".join(f"{number} {titles[role]}(s)" for role, number in numbers.items())
    return (
        f"{report.model}: {sites}, "
        f"{format_nbytes(report.full_nbytes)} of weights on every rank; {graphs}{breaks}"
    )


def _sections(report: Explained) -> Iterator[_Section]:
    yield _projections(report)
    yield _roles(report)
    yield _totals(report)
    yield _Section(
        "Left alone",
        ("where", "reason", "weight"),
        [
            (path, reason, format_nbytes(nbytes) if nbytes else "")
            for path, reason, nbytes in folded_misses(report.near_misses)
        ],
        2,
    )
    yield _Section(
        "Graph breaks",
        ("at", "reason", "times"),
        [
            (break_.source, break_.reason, str(times))
            for break_, times in Counter(report.graph_breaks).items()
        ],
        2,
    )


def _projections(report: Explained) -> _Section:
    size = next((n for n in reversed(report.sizes) if report.fits(n)), report.sizes[-1])
    rows = [
        (
            _times(path, row.calls),
            *([row.role] if _has_family(report) else []),
            row.gemm,
            _weight(row),
            f"as {row.shares_weight_with}" if row.shares_weight_with else format_nbytes(row.nbytes),
            format_nbytes(row.saved_nbytes(size)) if row.fits(size) else "does not fit",
            format_nbytes(row.sent_nbytes(size)) if row.fits(size) else "",
        )
        for path, row in _folded(report.projections)
    ]
    first = ("site", "role") if _has_family(report) else ("output projection",)
    headers = (*first, "GEMM", "weight [H, K]", "full", f"saved N={size}", "sent/token")
    return _Section("Sites" if _has_family(report) else "Projections", headers, rows, len(first) + 2)


def _has_family(report: Explained) -> bool:
    """Whether anything else than output projections is sharded too."""
    return any(row.role != "oproj" for row in report.projections)


def _roles(report: Explained) -> _Section:
    """Nothing for output projections alone, which the totals speak of."""
    totals = report.by_role()
    rows = [
        (
            total.role,
            str(size),
            str(total.sites),
            format_nbytes(total.full_nbytes),
            format_nbytes(saved),
            format_nbytes(total.left_nbytes) if total.left_nbytes else "",
        )
        for total in totals
        for size, saved in total.saved_nbytes.items()
    ]
    if (together := saved_as_configured(totals)) is not None:
        full = format_nbytes(sum(total.full_nbytes for total in totals))
        rows.append(("all", "", str(len(report.projections)), full, format_nbytes(together), ""))
    headers = ("role", "N", "sites", "full", "saved", "left alone")
    return _Section("By role", headers, rows if len(totals) > 1 else [], 1)


def _totals(report: Explained) -> _Section:
    rows = [
        (
            str(size),
            format_nbytes(report.saved_nbytes(size)),
            format_nbytes(report.net_saved_nbytes(size)),
            format_nbytes(report.sent_nbytes(size)),
        )
        for size in report.sizes
        if report.fits(size)
    ]
    return _Section("Totals", ("N", "saved", "saved net", "sent/token"), rows, 0)


def _notes(report: Explained) -> Iterator[str]:
    if not report.projections:
        yield "Nothing to shard."
        return
    buffers = format_nbytes(COMMUNICATION_BUFFER_NBYTES)
    yield f"Net of the communication buffers, {buffers} on every rank whatever the model."
    fitting = ", ".join(map(str, report.fitting_sizes)) or "none"
    by_rows = {row.strategy for row in report.projections} == {"row"}
    what = "divides every K" if by_rows else "fits every projection"
    size_of = (
        "Size that fits every site" if _has_family(report) else f"oproj_tensor_parallel_size that {what}"
    )
    yield f"{size_of}: {fitting}."
    for size in report.sizes:
        for row in report.misfits(size)[:1]:
            yield f"N = {size} {_misfit(row)} of {row.path}: compiling with it fails."
    losing = [str(n) for n in report.sizes if report.fits(n) and report.net_saved_nbytes(n) < 0]
    if losing:
        yield f"Do not shard over N = {', '.join(losing)}: the buffers take more than sharding frees."
    if report.oproj_tensor_parallel_size in (0, 1) and not _has_family(report):
        yield f"oproj_tensor_parallel_size = {report.oproj_tensor_parallel_size} shards nothing."


def _misfit(row: ProjectionRow) -> str:
    k = f"K = {row.in_features}{_in_units(row)}"
    if row.strategy == "row":
        return f"does not divide {k}"
    return (
        f"does not fit strategy {row.strategy!r} for {k} and H = {row.out_features} ({row.out_parts} parts)"
    )


def _in_units(row: ProjectionRow) -> str:
    return "" if row.unit == 1 else f" (groups of {row.unit} features)"


def _folded(rows: Sequence[ProjectionRow]) -> Iterator[tuple[str, ProjectionRow]]:
    groups: dict[ProjectionRow, list[str]] = defaultdict(list)
    for row in rows:
        groups[replace(row, path="")].append(row.path)
    for row, paths in groups.items():
        for path in fold_paths(paths):
            yield path, row


def _weight(row: ProjectionRow) -> str:
    value = NodeSnapshot("", "", "", shape=(row.out_features, row.in_features), dtype=row.dtype)
    return format_value(value) + ("" if row.scheme == "dense" else f" {row.scheme}")


def _times(path: str, calls: int) -> str:
    return path if calls == 1 else f"{path} (called {calls} times)"


def _table(section: _Section) -> Table:
    table = Table(title=section.title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for number, header in enumerate(section.headers):
        is_text = number < section.text_columns
        table.add_column(header, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    for row in section.rows:
        table.add_row(*map(Text, row))
    return table


def _html_row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
