"""What every command keeps to: help with an example, no traceback, and a light start."""

import json
import subprocess
import sys

import pytest
from typer.main import get_command

import oproj_pass
from oproj_pass.cli import app

COMMANDS = ["plan", "check", "explain", "advise", "diff", "doctor", "demo"]


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
        ["calibrate", "mine.json"],
        ["diff", "nowhere", "nowhere"],
        ["demo", "--model", "nowhere"],
        ["demo", "--max-tokens", "0"],
        ["plan", "--budget", "2", "--budget", "3"],
        ["check"],
        ["unknown"],
    ],
)
def test_bad_input_exits_2_and_says_why(oproj, arguments):
    result = oproj(*arguments)
    assert result.exit_code == 2
    assert result.stderr.strip()
    assert not result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_breaks_no_name_at_80_columns(oproj, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = oproj(command, "--help").stdout
    assert "…" not in shown
    names = {name for option in get_command(app).commands[command].params for name in option.opts}
    assert [name for name in names if name.startswith("--") and name not in shown] == []


def test_refuses_a_value_given_twice(oproj):
    result = oproj("plan", "--max-num-seqs", 4, "--max-num-seqs", 5)
    assert result.exit_code == 2
    assert "--max-num-seqs is given 2 times" in " ".join(result.stderr.split())


def test_shows_its_version_and_offers_completion(oproj):
    assert oproj("--version").stdout == f"oproj_pass {oproj_pass.__version__}\n"
    assert "--install-completion" in oproj("--help").stdout


def test_the_doctor_names_what_keeps_the_backend_from_working(oproj, monkeypatch):
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    result = oproj("doctor", "--json")
    assert result.exit_code == 1
    problems = json.loads(result.stdout)["problems"]
    assert [problem.partition(" ")[0] for problem in problems] == ["TORCHDYNAMO_DISABLE", "VLLM_PLUGINS"]
    monkeypatch.delenv("TORCHDYNAMO_DISABLE")
    monkeypatch.delenv("VLLM_PLUGINS")
    assert oproj("doctor").exit_code == 0


def test_planning_and_checking_load_no_torch(decode_node):
    code = (
        "import sys\n"
        "from oproj_pass.cli import app\n"
        "for command in ('plan', 'check'):\n"
        f"    app([command, {str(decode_node())!r}], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
        "from oproj_pass.passes import STRATEGIES\n"
        "assert 'torch' in sys.modules\n"  # the check above can fail
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_runs_as_a_process(oproj_process, decode_node):
    result = oproj_process("plan", decode_node())
    assert result.returncode == 0
    assert "exactly the largest possible decode step" in result.stdout


def test_a_process_shows_no_traceback_for_bad_input(oproj_process):
    result = oproj_process("explain", "nowhere")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
