"""Pools of gloo ranks: each rank is a process that lives for the whole test session.

A test sends a module-level function to every rank; it runs inside a fresh process group on loopback, and its
results or errors come back by rank. A rank that does not answer in time is killed, and the test fails.
"""

import os
import socket
import traceback
from contextlib import suppress
from datetime import timedelta

import pytest

from tests.support.workers import Worker


class RankPool:
    """``world`` processes that run the same function side by side, with ``environment`` added to theirs."""

    def __init__(self, world, environment=None):
        self.world = world
        self.environment = environment
        self._workers = None

    def run(self, function, *args, timeout=120, group_timeout=30, init=True):
        """``function(*args)`` on every rank; the list of results, or the first rank's error as a failure."""
        outcomes = self.outcomes(function, *args, timeout=timeout, group_timeout=group_timeout, init=init)
        for rank, (kind, value) in enumerate(outcomes):
            if kind != "result":
                pytest.fail(f"rank {rank} of {self.world}: {value}")
        return [value for _, value in outcomes]

    def outcomes(self, function, *args, timeout=120, group_timeout=30, init=True):
        """Per rank, ``("result", value)``, ``("error", text)`` or ``("lost", text)`` for a dead process."""
        self._workers = self._workers or [Worker(_serve, self.environment) for _ in range(self.world)]
        port = free_port()
        for rank, worker in enumerate(self._workers):
            worker.send((function, args, rank, self.world, port, group_timeout, init))
        outcomes = [worker.receive(timeout) for worker in self._workers]
        if any(kind == "lost" for kind, _ in outcomes):
            self.close()
        return outcomes

    def close(self):
        """End the processes; the next run starts new ones."""
        for worker in self._workers or ():
            worker.kill()
        self._workers = None


def _serve(connection):
    os.environ.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", TORCHINDUCTOR_COMPILE_THREADS="1")
    import torch

    torch.set_num_threads(1)
    with suppress(EOFError, KeyboardInterrupt):
        while True:
            connection.send(_run(*connection.recv()))


def _run(function, args, rank, world, port, group_timeout, init):
    import torch
    import torch.distributed as dist

    torch._dynamo.reset()
    torch.manual_seed(rank)
    try:
        if init:
            dist.init_process_group(
                "gloo",
                init_method=f"tcp://127.0.0.1:{port}",
                rank=rank,
                world_size=world,
                timeout=timedelta(seconds=group_timeout),
            )
        return "result", function(*args)
    except BaseException as error:  # the test decides what is expected
        return "error", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
