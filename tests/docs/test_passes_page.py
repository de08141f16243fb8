"""The page on passes: its snippets print what it says, its table is the code's."""

import contextlib
import io
import re
from pathlib import Path

from oproj_pass.passes.gemm.forms import FORMS

PAGE = Path(__file__).parents[2] / "docs" / "passes.md"
FORM = re.compile(r"^\| `(\w+)` \| .* \| \[(\w), \w\] \|$", re.MULTILINE)
SNIPPET = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def test_every_snippet_prints_what_the_page_says():
    snippets = SNIPPET.findall(PAGE.read_text(encoding="utf-8"))
    assert len(snippets) == 2
    namespace = {"__name__": "page"}
    for code, output in snippets:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, namespace)
        assert printed.getvalue() == output, code


def test_the_table_of_forms_is_the_codes():
    rows = re.findall(
        r"^\| `(\w+)` \| .* \| \[(\w), \w\] \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert rows == [(form.name, "KH"[form.contraction_dim]) for form in FORMS]
