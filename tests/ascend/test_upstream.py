"""Faults of torch_npu that this project works around: when a test here fails, a workaround may go."""

import os
import subprocess
import sys

import pytest

from oproj_pass import OProjConfig
from oproj_pass.backend.inner import inner_backend
from tests.support.ranks import free_port

LOAD = """
import torch
from oproj_pass import OProjConfig
from oproj_pass.backend.inner import inner_backend
inner_backend(OProjConfig(inner_backend="npugraph_ex"), {})
"""


def exchange_in_two_shapes_then_load_torchair():
    """npugraph_ex's all_to_all on rows of eight, as they are and flat, then loading torchair: the errors."""
    import npugraph_ex  # noqa: F401  (defines the operator)
    import torch
    import torch.distributed as dist

    address = f"tcp://127.0.0.1:{free_port()}"
    dist.init_process_group("hccl", init_method=address, rank=0, world_size=1)
    tag, rows = dist.distributed_c10d._get_group_tag(dist.group.WORLD), torch.zeros(4, 8).npu()
    torchair = OProjConfig(inner_backend="npu")
    return [
        attempt(lambda: exchange(rows, tag)),
        attempt(lambda: exchange(rows.reshape(-1), tag)),
        attempt(lambda: inner_backend(torchair, {})),
    ]


def exchange(x, tag):
    import torch

    counts = [x.numel()]
    return torch.ops.npu_define.all_to_all_single_npu(x, counts, [0], counts, [0], tag, [0], 1)


def attempt(function):
    try:
        function()
    except Exception as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def errors(npu_process):
    return npu_process(exchange_in_two_shapes_then_load_torchair).value


def test_npugraph_ex_reads_element_counts_as_row_counts_so_the_exchange_is_flat(errors):
    in_rows, flat, _ = errors
    assert "Split sizes doesn't match" in in_rows
    assert flat == ""


def test_torchair_does_not_load_after_npugraph_ex_and_is_refused_with_the_remedy(errors):
    assert "option inner_backend = 'npu' is installed but does not load" in errors[2]
    assert "a process each" in errors[2]


def test_without_cann_the_compiler_is_refused_with_the_remedy():
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, "-c", LOAD]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert "ConfigError: option inner_backend = 'npugraph_ex' is installed but does not load" in result.stderr
    assert "set_env.sh" in result.stderr
