"""Runs a function in processes of their own, each a data-parallel rank with its own in-process vLLM engine.

They are forked from one process that has imported vLLM, which takes longer than most of the tests.
"""

import faulthandler
import multiprocessing as mp
import os
import signal
import traceback
from contextlib import suppress

import pytest

from tests.support.ranks import free_port

ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}


def run_ranks(function, *args, world=2, environment=None, timeout=300):
    """``function(rank, *args)`` on each rank; results by rank, or the first error as the test's failure."""
    outcomes = rank_outcomes(function, *args, world=world, environment=environment, timeout=timeout)
    for rank, (kind, value) in enumerate(outcomes):
        if kind != "result":
            pytest.fail(f"{function.__name__}, rank {rank} of {world}: {value}", pytrace=False)
    return [value for _, value in outcomes]


def rank_outcomes(function, *args, world=2, environment=None, timeout=300):
    """Per rank ``("result", value)``, ``("error", traceback)`` or ``("lost", how)``."""
    port, ranks = free_port(), []
    try:
        for rank in range(world):
            variables = {**_variables(rank, world, port), **(environment or {})}
            ranks.append(_start(function, (rank, *args), variables))
        return [_receive(*started, timeout) for started in ranks]
    finally:
        for process, connection in ranks:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # an engine has children of its own
            process.join()
            connection.close()


def _start(function, args, variables):
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["tests.vllm.support.preload"])
    os.environ.update(ENVIRONMENT)  # the first start makes the process that all ranks are forked from
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, function, args, variables))
    process.start()
    theirs.close()
    return process, ours


def _receive(process, connection, timeout):
    try:
        if connection.poll(timeout):
            return connection.recv()
    except (EOFError, ConnectionResetError):
        process.join(5)
        return "lost", f"process ended with exit code {process.exitcode}"
    return "lost", f"no answer within {timeout} s"


def _variables(rank, world, port):
    if world == 1:
        return {}
    return {
        "VLLM_DP_RANK": str(rank),
        "VLLM_DP_RANK_LOCAL": "0",
        "VLLM_DP_SIZE": str(world),
        "VLLM_DP_MASTER_IP": "127.0.0.1",
        "VLLM_DP_MASTER_PORT": str(port),
    }


def _serve(connection, function, args, variables):
    os.setsid()
    faulthandler.enable()
    os.environ.update(variables)
    try:
        connection.send(("result", function(*args)))
    except BaseException:  # whatever it is, the test shows it
        connection.send(("error", traceback.format_exc()))
    os._exit(0)  # an engine's threads would keep the process
