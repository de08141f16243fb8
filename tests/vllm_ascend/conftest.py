"""The tests over the vllm-ascend package: an environment of their own (``make test-vllm-ascend``), no NPU.

This process imports neither vLLM nor torch_npu; what needs them runs in processes over the stub of CANN.
"""

from importlib.util import find_spec

import pytest

from tests.ascend.cann.build import missing_tools, stub_folder
from tests.ascend.support.process import run_over_stub

if find_spec("vllm_ascend") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def npu_process(tmp_path_factory):
    """``npu_process(function, *args)``: what the function returns in a process of its own over the stub."""
    missing = missing_tools()
    if missing:
        pytest.skip(f"building the CANN stub needs {', '.join(missing)}: install g++ and binutils")
    events = tmp_path_factory.mktemp("events") / "events.log"
    return lambda function, *args: run_over_stub(stub_folder(), events, function, *args, timeout=300).value
