"""Puts off full garbage collections while a runner compiles and captures.

Each goes through every object of the process, torch's and the model's among them, and compiling makes enough
new ones for many. Young garbage goes as ever. Nothing is frozen: ``gc.freeze`` hides modules and tensors from
whoever looks for what holds a weight, and nobody can unfreeze only what they froze themselves.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

NEVER = 2**31 - 1
"""Middle collections before a full one, as a C int holds them."""


class FullCollections:
    """Full collections of the process, put off while any of its threads is inside ``put_off``."""

    def __init__(self) -> None:
        self._lock, self._inside = Lock(), 0
        self._usual = NEVER

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Let no full collection begin by itself; afterwards the threshold is as before."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._usual = gc.get_threshold()[2]
                _set_full(NEVER)

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and gc.get_threshold()[2] == NEVER:
                _set_full(self._usual)


def _set_full(threshold: int) -> None:
    gc.set_threshold(*gc.get_threshold()[:2], threshold)


FULL_COLLECTIONS = FullCollections()  # of the process, as the collector is
