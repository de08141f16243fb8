"""Faults of torch_npu that this project works around: when a test here fails, a workaround may go."""

import os
import subprocess
import sys

from tests.support.ranks import free_port

LOAD = """
import torch
from oproj_pass import OProjConfig
from oproj_pass.inner import inner_backend
inner_backend(OProjConfig(inner_backend="npugraph_ex"), {})
"""


def exchange_in_two_shapes():
    """npugraph_ex's kernel for all_to_all on rows of eight, as they are and flat: the errors' texts."""
    import npugraph_ex  # noqa: F401  (defines the operator)
    import torch
    import torch.distributed as dist

    address = f"tcp://127.0.0.1:{free_port()}"
    dist.init_process_group("hccl", init_method=address, rank=0, world_size=1)
    tag, rows = dist.distributed_c10d._get_group_tag(dist.group.WORLD), torch.zeros(4, 8).npu()
    return [attempt(lambda x=x: exchange(x, tag)) for x in (rows, rows.reshape(-1))]


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


def test_npugraph_ex_reads_element_counts_as_row_counts_so_the_exchange_is_flat(npu_process):
    in_rows, flat = npu_process(exchange_in_two_shapes).value
    assert "Split sizes doesn't match" in in_rows
    assert flat == ""


def test_without_cann_the_compiler_is_refused_with_the_remedy():
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, "-c", LOAD]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert "ConfigError: option inner_backend = 'npugraph_ex' is installed but does not load" in result.stderr
    assert "set_env.sh" in result.stderr
