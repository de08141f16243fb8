"""Writes HTML and SVG in which every label is text and nothing else.

Decides escaping, once: whatever is not `Markup` is escaped, in content and in attributes, so that the
result is well-formed as XML and as HTML.
"""

from collections.abc import Mapping
from html import escape

from oproj_pass.passes.diff.labels import printable

__all__ = ["Markup", "element"]

_VOID = frozenset({"input", "meta"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def element(tag: str, attributes: Mapping[str, object] | None = None, *children: str) -> Markup:
    """One element; children that are not `Markup` are escaped, attributes always are."""
    written = "".join(f' {name}="{_escape(str(value))}"' for name, value in (attributes or {}).items())
    if tag in _VOID:
        return Markup(f"<{tag}{written}/>")
    inner = "".join(child if isinstance(child, Markup) else _escape(child) for child in children)
    return Markup(f"<{tag}{written}>{inner}</{tag}>")


def _escape(text: str) -> str:
    return escape("\n".join(printable(line) for line in text.split("\n")))
