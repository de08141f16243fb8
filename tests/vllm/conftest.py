"""The tests with vLLM: they run in an environment that has it (``make test-vllm``), on the CPU.

This process never imports vLLM; what needs it runs in processes of its own.
"""

from importlib.util import find_spec

import pytest

if find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """``checkpoints[shape]``: the folder of a tiny checkpoint with random weights, by architecture."""
    from examples.tiny_checkpoint import CONFIGS, write_checkpoint

    root = tmp_path_factory.mktemp("models")
    return {shape: write_checkpoint(root / shape, shape) for shape in CONFIGS}
