"""The scripts of these pages print on two ranks what the pages say."""

import re
from pathlib import Path

import pytest

from tests.support.scripts import run_script

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = re.compile(r'```python title="(\S+)"\n(.*?)```', re.DOTALL)
RUN = "```console\\n\\$ torchrun --nproc-per-node 2 {}\\n(.*?)```"

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    ("page", "name"),
    [("start", "unequal.py"), ("runtime", "serve.py"), ("context_parallel", "prefill.py")],
)
def test_prints_what_the_page_shows(two_ranks, tmp_path, page, name):
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    (tmp_path / name).write_text(dict(SCRIPT.findall(text))[name])
    (shown,) = re.findall(RUN.format(re.escape(name)), text, re.DOTALL)
    assert run_script(two_ranks, tmp_path, name).stdout == shown


def test_starts_with_the_ten_lines_of_the_readme():
    """Which a test of the README runs."""
    script = dict(SCRIPT.findall((DOCS / "start.md").read_text(encoding="utf-8")))["first_look.py"]
    assert script in (DOCS.parent / "README.md").read_text(encoding="utf-8")


def test_the_commands_that_are_shown_exist():
    from typer.main import get_command

    from oproj_pass.cli import app

    pages = "".join(path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md"))
    shown = set(re.findall(r"^(?:\$ |    )oproj (\w+)", pages, re.MULTILINE))
    assert shown - set(get_command(app).commands) == set()
    targets = set(re.findall(r"^([\w-]+):", (DOCS.parent / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z][\w-]+)`", pages)) - targets == set()
