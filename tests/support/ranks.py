"""Pools of gloo ranks: each rank is a process that lives for the whole test session.

They are forked from one process that has imported what they need: a pool whose rank died is soon there again.
A test sends a module-level function to every rank; it runs inside a fresh process group on loopback, and its
results or errors come back by rank. A rank that does not answer in time is killed, and the test fails.
"""

import gc
import os
import socket
import sys
import traceback
from contextlib import suppress
from datetime import timedelta

import pytest

from tests.support.workers import Worker


class RankPool:
    """``world`` processes that run the same function side by side, with ``environment`` added to theirs.

    ``preload``: the module that the process which they are forked from has imported.
    """

    def __init__(self, world, environment=None, preload="tests.support.preload"):
        self.world = world
        self.environment = environment
        self.preload = preload
        self._workers = None

    def run(self, function, *args, timeout=120, group_timeout=30, init=True):
        """``function(*args)`` on every rank; the list of results, or the first rank's error as a failure.

        Without ``init`` the function makes the process group itself, from the variables that torchrun sets.
        """
        outcomes = self.outcomes(function, *args, timeout=timeout, group_timeout=group_timeout, init=init)
        for rank, (kind, value) in enumerate(outcomes):
            if kind != "result":
                pytest.fail(f"rank {rank} of {self.world}: {value}")
        return [value for _, value in outcomes]

    def outcomes(self, function, *args, timeout=120, group_timeout=30, init=True):
        """Per rank, ``("result", value)``, ``("error", text)`` or ``("lost", text)`` for a dead process."""
        self._workers = self._workers or [
            Worker(_serve, self.environment, self.preload) for _ in range(self.world)
        ]
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
            worker.close()
        self._workers = None


def _serve(connection):
    with suppress(EOFError, KeyboardInterrupt):
        while True:
            connection.send(_run(*connection.recv()))


def _run(function, args, rank, world, port, group_timeout, init):
    import torch
    import torch.distributed as dist

    torch._dynamo.reset()
    torch.manual_seed(rank)
    os.environ.update(_torchrun(rank, world, port))
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
        _forget_compiled_graphs()


def _forget_compiled_graphs():
    """Free the groups of graphs that Dynamo keeps in modules' globals: their threads never rest."""
    import torch

    torch._dynamo.reset()
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        for name in [name for name in names if name.startswith("__compiled_fn_")]:
            del names[name]
    gc.collect()


def _torchrun(rank, world, port):
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    return {name: str(value) for name, value in numbers.items()} | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
