"""`oproj check`: the exit status says what the report says."""

import json

import pytest
from typer.testing import CliRunner

from oproj_pass.cli import app


def test_exits_0_for_a_node_that_keeps_every_rule(oproj, decode_node):
    result = oproj("check", decode_node())
    assert result.exit_code == 0
    assert result.stdout.startswith("may start: 0 error(s), 0 warning(s)")


def test_exits_1_for_an_error_and_lists_all_of_them(oproj, decode_node):
    result = oproj("check", decode_node(tensor_parallel_size=2, data_parallel_size=6), "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [finding["rule"] for finding in report["findings"]] == [2, 3]
    assert report["ok"] is False


def test_exits_3_for_warnings_only_and_prints_them_once(oproj_process, decode_node):
    result = oproj_process("check", decode_node(max_num_seqs=600))
    assert result.returncode == 3
    assert result.stdout.count("rule 13") == 1
    assert not result.stderr


def test_reads_the_model_that_the_file_names(oproj, decode_node, llama):
    """`llama` writes a dense model's config.json beside the deployment's file."""
    llama()
    path = decode_node(is_moe=None, num_attention_heads=None, head_dim=None, model="config.json")
    report = json.loads(oproj("check", path, "--json").stdout)
    assert report["not_judged"] == []
    assert [finding["rule"] for finding in report["findings"]] == [6]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"max_num_seq": 4}', "did you mean 'max_num_seqs'"),
        ("{", "is malformed"),
        ("[]", "holds a list"),
        ('{"max_num_seqs": "many"}', "max_num_seqs is 'many'"),
    ],
)
def test_exits_2_for_a_file_that_is_no_deployment(oproj, tmp_path, content, message):
    path = tmp_path / "decode.json"
    path.write_text(content)
    result = oproj("check", path)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not result.stdout


COMMAND = "vllm serve model -dp 8 --max-num-seqs 24 --max-num-batched-tokens 8k --hf-token x"


def test_reads_a_command_line_a_script_and_the_standard_input_alike(oproj, tmp_path):
    script = tmp_path / "serve.sh"
    script.write_text(f"export A=1\n{COMMAND} 2>&1 | tee log\n")
    by_command = json.loads(oproj("check", "--json", "--", *COMMAND.split()).stdout)
    assert by_command["cudagraph_mode"] == "FULL_AND_PIECEWISE"
    assert json.loads(oproj("check", "--json", script).stdout) == by_command
    piped = CliRunner().invoke(app, ["check", "--json", "-"], input=script.read_text())
    assert json.loads(piped.stdout) == by_command


def test_takes_the_model_by_its_config(oproj, decode_node, llama):
    path = decode_node(is_moe=None, num_attention_heads=None, head_dim=None)
    assert json.loads(oproj("check", path, "--json").stdout)["not_judged"]
    report = json.loads(oproj("check", path, "--hf-config", llama(), "--json").stdout)
    assert report["not_judged"] == []
    assert [finding["rule"] for finding in report["findings"]] == [6]


def test_prints_what_to_set(oproj, decode_node):
    shown = oproj("check", decode_node(tensor_parallel_size=2)).stdout
    assert '    set:      {"tensor_parallel_size": 1, "data_parallel_size": 16}' in shown


def test_prints_all_that_is_to_be_set_at_once_where_it_is_more_than_one_thing(oproj, decode_node):
    assert "set all" not in oproj("check", decode_node(tensor_parallel_size=2)).stdout
    path = decode_node(tensor_parallel_size=2, pipeline_parallel_size=2)
    (line,) = [line for line in oproj("check", path).stdout.splitlines() if line.startswith("set all: ")]
    change = json.loads(line.removeprefix("set all: "))
    assert json.loads(oproj("check", path, "--json").stdout)["change"] == change
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(fields | change))
    assert oproj("check", path).exit_code == 0
