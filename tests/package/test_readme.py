"""The README's commands are real, and its ten lines print what it says."""

import re
from pathlib import Path

import pytest

from tests.support.scripts import run_script

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SCRIPT = re.compile(
    r"\$ cat > (\S+) <<'EOF'\n(.*?)\nEOF\n\$ \S*torchrun --nproc-per-node 2 (\S+)\n(.*?)```", re.S
)


@pytest.mark.distributed
def test_the_ten_lines_print_what_the_readme_shows(two_ranks, tmp_path):
    name, code, run, expected = SCRIPT.search(README).groups()
    assert run == name
    (tmp_path / name).write_text(code)
    done = run_script(two_ranks, tmp_path, name)
    assert done.status == 0, done.stderr
    assert done.stdout == expected


def test_the_commands_are_make_targets():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    commands = re.findall(r"^\$ make (\w+)", README, re.M)
    assert commands == ["venv", "demo", "test"]
    assert set(commands) <= set(targets)


@pytest.mark.parametrize(
    "link", sorted(set(re.findall(r"(?:\]\(|src=\"|srcset=\")([^)#:\"]+)[)\"]", README)))
)
def test_every_link_leads_somewhere(link):
    assert (ROOT / link).exists()
