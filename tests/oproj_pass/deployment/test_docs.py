"""The snippets of docs/deployment.md print what the page says they print."""

import contextlib
import io
import re
from pathlib import Path

from oproj_pass.deployment import Rule
from oproj_pass.deployment.table import rule_table

PAGE = Path(__file__).parents[3] / "docs" / "deployment.md"
SNIPPET = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def test_every_snippet_prints_what_the_page_says():
    snippets = SNIPPET.findall(PAGE.read_text(encoding="utf-8"))
    assert len(snippets) > 15
    namespace = {}
    for code, output in snippets:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, namespace)
        assert printed.getvalue() == output, code


def test_every_rule_has_a_section_and_a_row():
    page = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^### (\d+\. .*)", page, re.MULTILINE) == [f"{rule}. {rule.title}" for rule in Rule]
    assert rule_table() in page
