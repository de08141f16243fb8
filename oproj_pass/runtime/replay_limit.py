"""Bounds a replay on its device: no process group's timeout reaches a collective inside a device graph.

Where the device has a timeout of its own for operations, that is set; where it has none, a thread watches the
replays and ends the process, with a record of what it did, when one does not end.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import ref

import torch

from oproj_pass.agreement.step_group import StepGroup
from oproj_pass.devices import DEVICES, Device
from oproj_pass.flight.record import FLIGHT
from oproj_pass.groups import world_size
from oproj_pass.runtime.device_graph import CAPTURING, Graph

logger = logging.getLogger(__name__)

EXIT_STATUS = 70  # EX_SOFTWARE of sysexits.h
_CHECKS_A_TIMEOUT, _LONGEST_PAUSE = 8, 5.0

Watched = Callable[[Graph], Graph]


def limit_replays(device: torch.device, timeout: float, name: str, group: StepGroup | None) -> Watched:
    """Let replays on ``device`` end or fail within ``timeout`` seconds; call it before anything is captured.

    ``group``: the ranks that a replay may wait for, None while it might be any of the world.

    Returns what makes a captured graph a watched one. Where a replay is a call, a group's timeout is enough.
    """
    known = DEVICES.get(device.type)
    ranks = world_size(None) if group is None else len(group.ranks)
    if known is None or known.graph_class is None or ranks == 1:
        return _as_it_is
    module = getattr(torch, known.name)
    set_timeout = getattr(module, known.timeout_setter or "", None)
    if set_timeout is None:
        return Watchdog(module, timeout, name).watched
    set_timeout(int(timeout * 1000))
    logger.info("%s: an operation on %s fails after %g s", name, known.name, timeout)
    _warn_of_longer_collectives(known, timeout, name)
    return _as_it_is


def _as_it_is(graph: Graph) -> Graph:
    return graph


def _warn_of_longer_collectives(device: Device, timeout: float, name: str) -> None:
    variable = device.collective_timeout_variable
    if variable is None:
        return
    value = os.environ.get(variable, "")
    if not value.isdigit() or not 0 < int(value) <= timeout:
        logger.warning(
            "%s: %s is %s, so a collective inside a replayed graph may wait longer for a lost rank than the "
            "runner's timeout of %g s. Set it to that many seconds before the process starts, on every rank",
            name, variable, value or "not set", timeout,
        )  # fmt: skip


class WatchedGraph:
    """A captured graph whose replays a watchdog sees."""

    def __init__(self, graph: Graph, watchdog: "Watchdog") -> None:
        self._graph, self._watchdog = graph, watchdog

    def replay(self) -> Any:
        """Launch the graph, and have its end watched."""
        output = self._graph.replay()
        self._watchdog.note_launched()
        return output


class Watchdog:
    """Ends the process when a replay has not ended on its device ``timeout`` seconds after its launch.

    ``device``: ``torch.cuda``, or a module like it. ``end``: what ends the process, with an exit status.
    """

    def __init__(
        self, device: Any, timeout: float, name: str, end: Callable[[int], object] = os._exit
    ) -> None:
        self._device, self._timeout, self._name, self._end = device, timeout, name, end
        self._launched: deque[tuple[float, Any]] = deque()
        pause = min(timeout / _CHECKS_A_TIMEOUT, _LONGEST_PAUSE)
        threading.Thread(
            target=_check_on, args=(ref(self), pause), name=f"watches replays of {name}", daemon=True
        ).start()

    def watched(self, graph: Graph) -> WatchedGraph:
        """``graph``, its replays watched."""
        return WatchedGraph(graph, self)

    def note_launched(self) -> None:
        """A replay was launched on the current stream just now."""
        event = self._device.Event()
        event.record()
        self._launched.append((time.monotonic() + self._timeout, event))

    def check(self) -> None:
        """Forget replays that have ended; end the process if the oldest other one is overdue."""
        while self._launched:
            deadline, event = self._launched[0]
            with CAPTURING:
                has_ended = event.query()
            if not has_ended:
                if time.monotonic() > deadline:
                    self._end_process()
                return
            self._launched.popleft()

    def _end_process(self) -> None:
        reason = (
            f"{self._name}: a replay has not ended within {self._timeout:g} s: a rank of its group is lost, "
            "or hangs, in a collective inside the device graph, where no error can reach this rank"
        )
        path = FLIGHT.write(reason)
        record = path or "not written, OPROJ_FLIGHT_DIR names no folder"
        logger.critical("%s. This process ends. Flight record: %s", reason, record)
        self._end(EXIT_STATUS)


def _check_on(watchdog: "ref[Watchdog]", pause: float) -> None:
    while True:
        time.sleep(pause)
        watched = watchdog()
        if watched is None:
            return
        watched.check()
        del watched
