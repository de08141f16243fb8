"""A capture plan as a table for a notebook."""

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oproj_pass.capture.plan import CapturePlan


def to_html(plan: "CapturePlan") -> str:
    """The plan's findings, and a row for each size with its reason."""
    findings = plan.explain()[: -len(plan.sizes)]
    rows = (f"<tr><td>{size}</td><td>{escape(why)}</td></tr>" for size, why in plan.rows())
    return (
        "".join(f"<p>{escape(line)}</p>" for line in findings)
        + f"<table><tr><th>size</th><th>why</th></tr>{''.join(rows)}</table>"
    )
