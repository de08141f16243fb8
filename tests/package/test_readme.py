"""The README's commands are real, and its ten lines print what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ranks import free_port

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SCRIPT = re.compile(r"\$ cat > (\S+) <<'EOF'\n(.*?)\nEOF\n\$ \S*torchrun (.*?)\n(.*?)```", re.S)


@pytest.mark.distributed
def test_the_ten_lines_print_what_the_readme_shows(tmp_path):
    name, code, arguments, expected = SCRIPT.search(README).groups()
    (tmp_path / name).write_text(code)
    address = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    launch = [sys.executable, "-m", "torch.distributed.run", *address]
    result = subprocess.run(
        [*launch, *arguments.split()], cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False
    )
    assert result.returncode == 0, result.stderr
    # torchrun runs Python unbuffered: one rank's line may end after the other's begins
    assert result.stdout.replace("\n", "") == expected.replace("\n", "")


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
