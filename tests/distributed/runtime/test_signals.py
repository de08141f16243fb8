"""A rank is killed, stopped, ended or interrupted in any phase: every other one raises within three timeouts.

The signal comes from inside the phase, from the rank itself, so that it is really there.
"""

import os
import signal
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from oproj_pass.runtime import DecodeRunner
from tests.distributed.runtime.ranks import PLAN, Exchanging, batch, caught, checked_step, whole_group

pytestmark = pytest.mark.distributed

TIMEOUT = 2.0
SIGNALS = ["SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT"]
# Phase -> the call of the model in which the signal comes: between its two collectives.
CALLS = {"warm-up": 1, "capture": 2, "replay": 1}


def hit(phase, name, culprit):
    """How this rank's phase, and one more step, end, while ``culprit`` sends itself the signal in it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits to ignore it
    processes = [None] * dist.get_world_size()
    dist.all_gather_object(processes, os.getpid())
    fn = Exchanging()
    runner = DecodeRunner(
        fn, PLAN, rows={"x": 0}, group=whole_group(), timeout=TIMEOUT, capture_timeout=TIMEOUT
    )
    runner._peers.limit_collectives()  # as while serving, before it too
    is_culprit = dist.get_rank() == culprit
    strike = lambda: os.kill(os.getpid(), signal.Signals[name])  # noqa: E731
    if phase in ("agreement", "replay"):
        runner.capture({"x": torch.zeros(1, 3)})
        checked_step(runner, 3)
        fn.calls.clear()
    if is_culprit and phase == "agreement":
        strike_once(runner._peers.group, strike)
    elif is_culprit:
        fn.fail_at = {CALLS[phase]: strike}
    action = {
        "warm-up": lambda: runner.warm_up({"x": batch(2)}),
        "capture": lambda: runner.capture({"x": torch.zeros(1, 3)}),
    }.get(phase, lambda: runner.step({"x": batch(2)}))
    ends = caught(action), caught(lambda: runner.step({"x": batch(2)}))
    if name == "SIGSTOP" and not is_culprit:
        os.kill(processes[culprit], signal.SIGCONT)
    return ends, processes, int(os.environ["MASTER_PORT"])


def strike_once(group, strike):
    """Let ``strike`` come when the next exchange of ``group`` begins."""
    exchange = group.exchange

    def struck(*arguments):
        group.exchange = exchange
        strike()
        return exchange(*arguments)

    group.exchange = struck


def require_heard(outcomes):
    for kind, value in outcomes:
        assert kind == "result", value
        (error, message, seconds), (again, _, at_once) = value[0]
        assert error == again == "GroupMismatchError", message
        assert seconds < 3 * TIMEOUT + 5  # a loaded machine
        assert at_once < 1


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("phase", ["warm-up", "capture", "agreement", "replay"])
def test_two_ranks(two_ranks, phase, name):
    other, (kind, value) = two_ranks.outcomes(hit, phase, name, 1, timeout=30)
    require_heard([other])
    if name == "SIGSTOP":  # it goes on in a group that has given it up
        require_heard([(kind, value)])
    elif name == "SIGINT":
        assert (kind, value.partition(":")[0]) == ("error", "KeyboardInterrupt")
    else:
        assert (kind, name in value) == ("lost", True)


def test_four_ranks_leave_no_process_and_no_port(four_ranks):
    outcomes = four_ranks.outcomes(hit, "replay", "SIGKILL", 2, timeout=30)
    assert outcomes.pop(2)[0] == "lost"
    require_heard(outcomes)
    (_, (_, processes, port)), *_ = outcomes
    assert not any(Path(f"/proc/{process}").exists() for process in processes)  # the pool has closed
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections linger
        probe.bind(("127.0.0.1", port))
