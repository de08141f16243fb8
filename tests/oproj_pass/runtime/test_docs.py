"""The snippets of docs/runtime.md print what the page says they print."""

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "runtime.md"
SNIPPET = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def test_every_snippet_prints_what_the_page_says():
    snippets = SNIPPET.findall(PAGE.read_text(encoding="utf-8"))
    assert len(snippets) == 7
    namespace = {}
    for code, output in snippets:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, namespace)
        assert printed.getvalue() == output, code
