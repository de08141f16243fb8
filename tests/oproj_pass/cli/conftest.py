"""Runs the command in this process, and as a process of its own."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from oproj_pass.cli import app

DECODE = {
    "data_parallel_size": 8,
    "max_num_seqs": 24,
    "max_num_batched_tokens": 8192,
    "speculative_config": {"num_speculative_tokens": 1},
    "cudagraph_mode": "FULL_DECODE_ONLY",
    "num_attention_heads": 128,
    "head_dim": 128,
    "is_moe": True,
    "additional_config": {
        "scheduler_config": {"recompute_scheduler_enable": True},
        "finegrained_tp_config": {"oproj_tensor_parallel_size": 8},
    },
    "kv_transfer_config": {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_consumer",
        "kv_connector_extra_config": {
            "connectors": [
                {"kv_connector": "MooncakeConnectorV1"},
                {"kv_connector": "PreemptOffloadConnector"},
            ]
        },
    },
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "vocab_size": 50,
    "dtype": "bfloat16",
}


@pytest.fixture(autouse=True)
def no_earlier_run(tmp_path_factory, monkeypatch):
    """Nothing is answered from what was found before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def oproj():
    """The command in this process."""
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def oproj_process():
    """The command as a process of its own."""

    def run(*arguments):
        command = [sys.executable, "-m", "oproj_pass.cli", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=240)

    return run


@pytest.fixture
def decode_node(tmp_path):
    """Writes the file of a decode node that keeps every rule, with some fields changed."""

    def write(**changes):
        path = tmp_path / "decode.json"
        path.write_text(json.dumps(DECODE | changes))
        return path

    return write


@pytest.fixture
def llama(tmp_path):
    """Writes a tiny config.json, with some fields changed."""

    def write(**changes):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(LLAMA | changes))
        return path

    return write
