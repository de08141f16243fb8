"""The pages of the commands show what the commands print."""

import re
import shlex
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[3] / "docs" / "cli"
FILE = re.compile(r'```(?:yaml|json) title="(\S+)"\n(.*?)```', re.DOTALL)
COMMAND = re.compile(r"```console\n\$ oproj (.*?)\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize(("page", "commands"), [("plan", 2), ("check", 1), ("explain", 1)])
def test_every_command_prints_what_the_page_says(oproj, page, commands, tmp_path, monkeypatch):
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name, content in FILE.findall(text):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(content)
    shown = COMMAND.findall(text)
    assert len(shown) == commands
    for command, output in shown:
        printed = oproj(*shlex.split(command)).stdout
        assert [line.rstrip() for line in printed.splitlines()] == output.splitlines()


COMMANDS = ["plan", "check", "explain", "advise", "calibrate", "diff", "doctor", "flight", "demo"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_on_the_commands_page(oproj, command):
    text = (PAGES / f"{command}.md").read_text(encoding="utf-8")
    options = set(re.findall(r"--[a-z-]+", oproj(command, "--help").stdout)) - {"--help"}
    assert options
    assert [option for option in sorted(options) if option not in text] == []
