"""Writes the flight record when the process is told to end, also while its main thread waits in C.

Python runs a signal's handler in the main thread, between two of its instructions: not while that waits for a
peer. Its C handler wakes a thread here at once, which writes. SIGUSR1 only writes.
"""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from oproj_pass.flight.record import FLIGHT, FOLDER_VARIABLE

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_PATIENCE = 1.0
_Handler = Callable[[int, FrameType | None], Any]


class _Armed:
    """Whether signals are handled; ``lock``: runners may be made in several threads."""

    lock = threading.Lock()
    done = False


def write_on_signals() -> None:
    """Handle SIGTERM, SIGINT and SIGUSR1 from now on, if ``OPROJ_FLIGHT_DIR`` is set; says if it cannot.

    What a signal did before it does afterwards. A SIGTERM that found no handler still ends the process: where
    the main thread does not get to it within a second, with exit status 143.
    """
    if not os.environ.get(FOLDER_VARIABLE):
        return
    with _Armed.lock:
        if _Armed.done:
            return
        if threading.current_thread() is not threading.main_thread():
            logger.warning(
                "%s is set, but signals can be handled from the main thread only: call "
                "oproj_pass.flight.signals.write_on_signals() there, or none of them writes the record",
                FOLDER_VARIABLE,
            )
            return
        _arm()
        _Armed.done = True


def _arm() -> None:
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    ending = {number for number in _SIGNALS if _ends_process(number)}
    previous = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    if previous != -1:
        signal.set_wakeup_fd(previous)
        logger.warning(
            "another part of this process is woken by signals (an event loop): the flight record is written "
            "only once the main thread does not wait"
        )
    for number in _SIGNALS:
        signal.signal(number, _handler(signal.getsignal(number)))
    threading.Thread(
        target=_write_when_woken, args=(reading, writing, ending), name="oproj flight record", daemon=True
    ).start()


def _ends_process(number: int) -> bool:
    return number != signal.SIGUSR1 and signal.getsignal(number) is signal.SIG_DFL


def _handler(previous: Any) -> _Handler:
    def handle(number: int, frame: FrameType | None) -> None:
        FLIGHT.write(signal.Signals(number).name)
        if callable(previous):
            previous(number, frame)
        elif previous is signal.SIG_DFL and number != signal.SIGUSR1:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    return handle


def _write_when_woken(reading: socket.socket, _writing: socket.socket, ending: set[int]) -> None:
    while True:
        for number in reading.recv(64):
            if number in _SIGNALS:
                FLIGHT.write(f"{signal.Signals(number).name}, seen while the main thread may have waited")
            if number in ending:
                time.sleep(_PATIENCE)
                os._exit(128 + number)
