"""`vllm serve` command lines, and the scripts that hold one."""

import pytest

from oproj_pass.deployment import Deployment
from oproj_pass.deployment.serve_command import serve_fields
from oproj_pass.deployment.shell import serve_arguments_of_script
from oproj_pass.errors import ConfigError


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ("some/model -tp 2", {"model": "some/model", "tensor_parallel_size": 2}),
        ("--tensor-parallel-size=2 m", {"tensor_parallel_size": 2, "model": "m"}),
        ("--enforce-eager m", {"enforce_eager": True, "model": "m"}),
        ("m --no-enforce-eager", {"model": "m", "enforce_eager": False}),
        ("--max-model-len -1", {"max_model_len": "-1"}),
        ("--cudagraph-capture-sizes 1 2 -dp 8", {"cudagraph_capture_sizes": [1, 2], "data_parallel_size": 8}),
        ("-O2", {"optimization_level": 2}),
        ("-cc.cudagraph_mode FULL -cc.mode=3", {"compilation_config": {"cudagraph_mode": "FULL", "mode": 3}}),
        ('-sc {"num_speculative_tokens":1}', {"speculative_config": {"num_speculative_tokens": 1}}),
    ],
)  # fmt: skip
def test_reads_every_spelling(arguments, fields):
    assert serve_fields(arguments.split()) == fields


@pytest.mark.parametrize(
    "arguments", ["-tp 1 --tensor-parallel-size 2", "m n", "-cc.mode 3 --compilation-config.mode 1"]
)
def test_refuses_a_value_given_twice(arguments):
    with pytest.raises(ConfigError, match="given twice"):
        serve_fields(arguments.split())


@pytest.mark.parametrize(
    ("written", "number"), [("8k", 8000), ("8K", 8192), ("25.6k", 25600), ("1m", 1_000_000), ("512", 512)]
)
def test_numbers_are_as_readable_as_vllms(written, number):
    assert Deployment(max_num_batched_tokens=written).max_num_batched_tokens == number


@pytest.mark.parametrize("written", ["1.5K", "8q", "eight"])
def test_refuses_what_is_no_whole_number(written):
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens is .*required: a whole number"):
        Deployment(max_num_batched_tokens=written)


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("vllm serve m -dp 8", ["m", "-dp", "8"]),
        ("#!/bin/bash\n# don't\nset -e\nexec vllm serve m \\\n  -dp 8 # eight\necho end", ["m", "-dp", "8"]),
        ("export DP=8\nN=2 vllm serve m -dp $DP -tp ${TP:-1}", ["m", "-dp", "8", "-tp", "1"]),
        ("nohup /opt/bin/vllm serve 'a b' > log 2>&1 &", ["a b"]),
        ("python -m vllm.entrypoints.openai.api_server --model m", ["--model", "m"]),
        ("vllm serve $(pick) --port $UNSET_HERE", ["$"]),
    ],
)
def test_finds_the_command_of_a_script(script, arguments):
    assert serve_arguments_of_script(script, "serve.sh") == arguments


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo", "holds 0 `vllm serve` commands"),
        ("vllm serve a & vllm serve b", "holds 2 `vllm serve` commands"),
        ("vllm serve 'a", "serve.sh is malformed: no closing quotation"),
    ],
)
def test_refuses_a_script_without_one_command(script, message):
    with pytest.raises(ConfigError, match=message):
        serve_arguments_of_script(script, "serve.sh")


def test_what_stands_in_the_command_wins_over_its_config_file(tmp_path):
    (tmp_path / "serve.yaml").write_text("model: m\nmax-num-seqs: 8\ndata-parallel-size: 4\n")
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve --config serve.yaml --max-num-seqs 16")
    deployment = Deployment.from_file(script)
    assert (deployment.max_num_seqs, deployment.data_parallel_size) == (16, 4)


def test_the_optimisation_level_without_graphs_has_none():
    assert Deployment.from_command(["vllm", "serve", "m", "-O0"]).effective_cudagraph_mode.name == "NONE"
    assert Deployment.from_command(["vllm", "serve", "m", "-O1"]).effective_cudagraph_mode.name != "NONE"


def test_refuses_a_command_that_serves_nothing():
    with pytest.raises(ConfigError, match="required: vllm serve MODEL"):
        Deployment.from_command(["vllm", "bench"])
