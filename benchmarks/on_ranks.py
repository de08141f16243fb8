"""Runs a measurement on gloo ranks of this machine, one thread each, and keeps it with what it ran on."""

import json
import multiprocessing as mp
import os
import platform
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def over_gloo() -> None:
    """Make the world."""
    dist.init_process_group("gloo")


def measure(
    steps: Callable[[int], Any], size: int, counts: list[int], connect: Callable[[], None] = over_gloo
) -> dict[int, Any]:
    """What rank 0 of ``size`` found in ``steps(rows)``, by rows; ``connect`` makes the world."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = mp.get_context("spawn")
    queue = context.Queue()
    processes = [
        context.Process(target=_rank, args=(steps, place, size, port, counts, connect, queue))
        for place in range(size)
    ]
    for process in processes:
        process.start()
    found = dict(queue.get(timeout=900) for _ in counts)
    for process in processes:
        process.join()
    return found


def keep(path: Path, ranks: int, model: dict[str, Any], **figures: Any) -> None:
    """Write raw figures, with the machine and the model."""
    about = {
        "ranks": ranks, "backend": "gloo", "threads_a_rank": 1, "cpus": os.cpu_count(),
        "machine": platform.machine(), "torch": torch.__version__, **model,
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"about": about, **figures}) + "\n")


def _rank(
    steps: Callable[[int], Any],
    place: int,
    size: int,
    port: int,
    counts: list[int],
    connect: Callable[[], None],
    queue: mp.Queue,
) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(place), WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    connect()
    for rows in counts:
        torch._dynamo.reset()
        mine = steps(rows)
        if place == 0:
            queue.put((rows, mine))
    dist.destroy_process_group()
