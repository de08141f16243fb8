"""The page on context parallelism: its snippet prints what it says, its reasons are the code's."""

import contextlib
import io
import re
from pathlib import Path

import torch.distributed as dist

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "context_parallel.md").read_text(encoding="utf-8")


def test_the_snippet_prints_what_the_page_says():
    ((code, output),) = re.findall(r"```python\n(import torch\n.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            exec(code, {"__name__": "page"})
        finally:
            dist.destroy_process_group()
    assert printed.getvalue() == output


def test_every_reason_on_the_page_is_given_by_the_code():
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "passes" / "context_parallel").glob("*.py")
    )
    table = PAGE.partition("| near miss | why |")[2].partition("\n\n")[0]
    reasons = re.findall(r"`([^`]+)`", " ".join(row.split("|")[1] for row in table.splitlines()[2:]))
    assert len(reasons) > 5
    assert all(reason in sources for reason in reasons)
