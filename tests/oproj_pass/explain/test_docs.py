"""The snippets of docs/explain.md print what the page says they print."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "explain.md"
SNIPPET = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def test_every_snippet_prints_what_the_page_says(tmp_path):
    code, output = zip(*SNIPPET.findall(PAGE.read_text(encoding="utf-8")), strict=True)
    assert len(code) == 2
    script = tmp_path / "page.py"
    script.write_text("".join(code))
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    assert [line.rstrip() for line in result.stdout.splitlines()] == "".join(output).splitlines()
