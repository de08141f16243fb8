"""The snippets of docs/explain.md print what the page says they print."""

import contextlib
import io
import re
import runpy
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "explain.md"
SNIPPET = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def test_every_snippet_prints_what_the_page_says(tmp_path):
    code, output = zip(*SNIPPET.findall(PAGE.read_text(encoding="utf-8")), strict=True)
    assert len(code) == 2
    script = tmp_path / "page.py"
    script.write_text("".join(code))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(script), run_name="page")
    assert [line.rstrip() for line in printed.getvalue().splitlines()] == "".join(output).splitlines()
