"""The frame of a page that loads nothing: its policy forbids every request, and runs only its own script."""

import base64
import hashlib

from oproj_pass.passes.diff.markup import Markup, element

__all__ = ["document"]


def document(title: str, style: Markup, *body: Markup, script: Markup | None = None) -> str:
    """A whole HTML document of one style and at most one script, which comes last in ``body``."""
    run = "" if script is None else f"script-src '{_digest(script)}'; "
    policy = f"default-src 'none'; style-src '{_digest(style)}'; {run}base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        None,
        element("meta", {"charset": "utf-8"}),
        element("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "color-scheme", "content": "light dark"}),
        element("title", None, title),
        element("style", None, style),
    )
    scripts = [] if script is None else [element("script", None, script)]
    page = element("html", {"lang": "en"}, head, element("body", None, *body, *scripts))
    return f"<!doctype html>\n{page}\n"


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
