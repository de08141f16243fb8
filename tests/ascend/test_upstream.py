"""Faults of torch_npu that this project works around: when a test here fails, a workaround may go."""

import os
import subprocess
import sys

import pytest

from oproj_pass import OProjConfig
from oproj_pass.backend.inner import inner_backend
from tests.ascend.support.trace import captured_models
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


def exchange(x, tag, size=1):
    import torch

    count = x.numel() // size
    counts, offsets = [count] * size, [count * rank for rank in range(size)]
    ranks = list(range(size))
    return torch.ops.npu_define.all_to_all_single_npu(x, counts, offsets, counts, offsets, tag, ranks, size)


def start_two_and_await_both():
    """Two exchanges of npugraph_ex, then two of torch's gathers, each pair in one capture."""
    import npugraph_ex  # noqa: F401  (defines the operator)
    import torch
    import torch.distributed as dist

    dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=2)
    c10d, flat = torch.ops._c10d_functional, torch.zeros(8).npu()
    tag, name = dist.distributed_c10d._get_group_tag(dist.group.WORLD), dist.group.WORLD.group_name
    for start in (lambda: exchange(flat, tag, 2), lambda: c10d.all_gather_into_tensor(flat, 2, name)):
        c10d.wait_tensor(start())  # makes the communicator, outside the capture
        with torch.npu.graph(torch.npu.NPUGraph()):
            for started in [start(), start()]:
                c10d.wait_tensor(started)


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


def test_npugraph_ex_awaits_an_exchange_where_it_starts_so_chunks_take_a_side_stream(npu_process):
    captured = captured_models(npu_process(start_two_and_await_both).events)
    exchanged, gathered = (
        [line.split()[0] for line in lines if line.split("stream=")[1].split()[0] == main]
        for main, lines in captured
    )
    assert exchanged == ["record", "wait", "record", "wait"]
    assert gathered == ["record", "record", "wait", "wait"]


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
