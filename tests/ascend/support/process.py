"""Runs a function in a process of its own over the CANN stub; brings back its result and the device's events.

They are forked from one that has imported torch_npu, but for those with another CANN or number of devices.
"""

import faulthandler
import os
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.workers import Worker

SOC, CANN, DEVICES = "Ascend910B3", "9.1.0", 1
PRELOAD = "tests.ascend.support.preload"


@dataclass(frozen=True)
class Outcome:
    """``value``: what the function returned; ``events``: the fake device's log, a line each."""

    value: Any
    events: list[str]

    def count(self, event):
        """Number of events that begin with ``event`` ("replay", "capture begin", ...)."""
        return sum(line.startswith(event) for line in self.events)


def stub_environment(folder, *, soc=SOC, cann=CANN, devices=DEVICES, events=None):
    """The variables under which a process loads torch_npu over the stub in ``folder``."""
    search = [str(folder), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        "LD_LIBRARY_PATH": ":".join(filter(None, search)),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "OMP_NUM_THREADS": "1",
        "CANN_STUB_DEVICES": str(devices),
        "CANN_STUB_SOC": soc,
        "CANN_STUB_VERSION": cann,
        "CANN_STUB_EVENTS": str(events or ""),
    }


def run_over_stub(folder, events: Path, function, *args, soc=SOC, cann=CANN, devices=DEVICES, timeout=180):
    """``function(*args)`` in a process of its own, which is killed after ``timeout`` seconds.

    ``function`` is a module's own, as it is pickled by reference; torch_npu is imported before it runs. Fails
    the test with the child's traceback, or with the last events where the child died without one.
    """
    environment = stub_environment(folder, soc=soc, cann=cann, devices=devices, events=events)
    as_preloaded = (cann, devices) == (CANN, DEVICES)  # torch_npu reads them as it is imported
    worker = Worker(_serve, environment, PRELOAD if as_preloaded else None)
    try:
        worker.send((function, args))
        kind, value = worker.receive(timeout)
    finally:
        worker.close()
    logged = events.read_text().splitlines() if events.exists() else []
    if kind != "result":
        last = "\n".join(logged[-10:]) or "none"
        pytest.fail(
            f"{function.__name__} over the CANN stub: {value}\nlast device events: {last}", pytrace=False
        )
    return Outcome(value, logged)


def _serve(connection):
    faulthandler.enable()
    try:
        import torch_npu  # noqa: F401

        function, args = connection.recv()
        answer = "result", function(*args)
        connection.send(answer)
    except BaseException:  # whatever it is, the test shows it
        connection.send(("error", traceback.format_exc()))
    connection.poll(None)  # tensors in the answer are shared memory of this process: stay until it is read
