"""An explain report as a page of its own, light or dark."""

from oproj_pass.explanation.explained import Explained
from oproj_pass.explanation.render import to_html
from oproj_pass.passes.diff.document import document
from oproj_pass.passes.diff.markup import Markup, element

__all__ = ["to_page"]

_STYLE = Markup(
    """
:root { color-scheme: light dark;
  --text: #1c2128; --muted: #57606a; --line: #d5dae1; --page: #f6f8fa; --card: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --text: #d5dbe3; --muted: #9aa4b1; --line: #3a424d; --page: #15191f; --card: #1d232b; }
}
body { margin: 0 auto; padding: 24px 16px; max-width: 68rem; background: var(--page); color: var(--text);
  font: 15px/1.55 system-ui, sans-serif; }
p { margin: 1.2em 0 .4em; }
table { display: block; overflow-x: auto; width: fit-content; max-width: 100%; border-collapse: collapse;
  background: var(--card); border: 1px solid var(--line); border-radius: 6px; }
th, td { padding: 6px 14px; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--muted); font-weight: 600; }
td { font: 13px/1.5 ui-monospace, monospace; }
tr:last-child td { border-bottom: 0; }
"""
)


def to_page(report: Explained, note: str | None = None) -> str:
    """The whole document; ``note`` stands below the report's own."""
    notes = [element("p", None, note)] if note else []
    return document(f"What sharding does to {report.model}", _STYLE, Markup(to_html(report)), *notes)
