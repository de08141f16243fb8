"""What every command keeps to: help with an example, no traceback, and a light start."""

import subprocess
import sys

import pytest

COMMANDS = ["plan", "check", "explain", "advise", "diff", "demo"]


def test_lists_every_command(oproj):
    result = oproj("--help")
    assert result.exit_code == 0
    assert all(command in result.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_and_the_exit_status(oproj, command):
    result = oproj(command, "--help")
    assert result.exit_code == 0
    assert f"Example: oproj {command}" in result.stdout
    assert "Exit status" in result.stdout
    assert "--json" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan"],
        ["plan", "--max-num-seqs", "none"],
        ["check", "nowhere.yaml"],
        ["explain", "nowhere"],
        ["explain", "."],
        ["advise", ".", "--machine", "nowhere"],
        ["diff", "nowhere", "nowhere"],
        ["demo", "--model", "nowhere"],
        ["demo", "--max-tokens", "0"],
        ["unknown"],
    ],
)
def test_bad_input_exits_2_without_a_traceback(oproj_process, arguments):
    result = oproj_process(*arguments)
    assert result.returncode == 2
    assert result.stderr.strip()
    assert "Traceback" not in result.stderr
    assert not result.stdout


@pytest.mark.parametrize("command", ["plan", "check"])
def test_planning_and_checking_load_no_torch(decode_node, command):
    code = (
        "import sys\n"
        "from oproj_pass.cli import app\n"
        f"app([{command!r}, {str(decode_node())!r}], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
        "import oproj_pass.explanation\n"
        "assert 'torch' in sys.modules\n"  # the check above can fail
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_runs_as_a_process(oproj_process, decode_node):
    result = oproj_process("plan", decode_node())
    assert result.returncode == 0
    assert "exactly the largest possible decode step" in result.stdout
