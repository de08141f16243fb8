"""A report for people: lines for terminals, an HTML table for notebooks. Values are never markup."""

from __future__ import annotations

import html
import json

from rich.console import Group, RenderableType
from rich.text import Text

from oproj_pass.deployment.findings import Finding, Findings
from oproj_pass.deployment.knobs import Knob

__all__ = ["headline", "to_html", "to_rich"]

_COLUMNS = ("rule", "severity", "field", "value", "required", "remedy", "set")
_STYLES = {"error": "red", "warning": "yellow"}


def to_rich(report: Findings) -> RenderableType:
    """Return the report as a headline and a few lines a finding, which wrap and are never cut."""
    lines = [Text(headline(report), style="green" if report.ok else "red")]
    for finding in report.findings:
        severity = finding.severity.value
        title = f"rule {finding.rule} {severity}: {finding.field} is {finding.value!r}"
        lines.append(Text(title, style=_STYLES[severity]))
        lines.append(Text(f"    required: {finding.required}"))
        lines.append(Text(f"    remedy:   {finding.remedy}"))
        if finding.change is not None:
            lines.append(Text(f"    set:      {json.dumps(finding.change)}"))
    if sum(finding.change is not None for finding in report.findings) > 1:
        lines.append(Text(f"set all: {json.dumps(report.change)}"))
    lines += [Text(f"not judged: {reason}", style="dim") for reason in report.not_judged]
    return Group(*lines)


def to_html(report: Findings) -> str:
    """Return the report as one HTML fragment."""
    parts = [f"<p><b>{html.escape(headline(report))}</b></p>"]
    if report.findings:
        rows = [_html_row("td", _cells(finding)) for finding in report.findings]
        parts.append(f"<table>{_html_row('th', _COLUMNS)}{''.join(rows)}</table>")
    parts += [f"<p>not judged: {html.escape(line)}</p>" for line in report.not_judged]
    return "".join(parts)


def headline(report: Findings) -> str:
    """Return the report in one line."""
    verdict = "may start" if report.ok else "refused"
    sizes = {Knob.OPROJ: 0, **report.sizes}
    return (
        f"{verdict}: {len(report.errors)} error(s), {len(report.warnings)} warning(s); "
        f"{', '.join(f'{knob}={size}' for knob, size in sizes.items())}, "
        f"cudagraph_mode={report.cudagraph_mode}"
    )


def _cells(finding: Finding) -> tuple[str, ...]:
    return (
        str(finding.rule),
        finding.severity.value,
        finding.field,
        repr(finding.value),
        finding.required,
        finding.remedy,
        "" if finding.change is None else json.dumps(finding.change),
    )


def _html_row(tag: str, cells: tuple[str, ...]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
