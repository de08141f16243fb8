"""Runs a measurement on gloo ranks of this machine, one thread each, and says what they ran on."""

import multiprocessing as mp
import os
import platform
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def measure(steps: Callable[[int], Any], size: int, counts: list[int]) -> dict[int, Any]:
    """What rank 0 of ``size`` found in ``steps(rows)``, by the number of rows."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = mp.get_context("spawn")
    queue = context.Queue()
    processes = [
        context.Process(target=_rank, args=(steps, place, size, port, counts, queue)) for place in range(size)
    ]
    for process in processes:
        process.start()
    found = dict(queue.get(timeout=900) for _ in counts)
    for process in processes:
        process.join()
    return found


def about(ranks: int, **model: Any) -> dict[str, Any]:
    """The machine and the model, to keep with raw figures."""
    return {
        "ranks": ranks, "backend": "gloo", "threads_a_rank": 1, "cpus": os.cpu_count(),
        "machine": platform.machine(), "torch": torch.__version__, **model,
    }  # fmt: skip


def _rank(
    steps: Callable[[int], Any], place: int, size: int, port: int, counts: list[int], queue: mp.Queue
) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(place), WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for rows in counts:
        torch._dynamo.reset()
        mine = steps(rows)
        if place == 0:
            queue.put((rows, mine))
    dist.destroy_process_group()
