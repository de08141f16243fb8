"""Remembers groups in which a call failed between its agreement and its end, a collective perhaps half done.

A peer may still wait in one of them, so whatever this rank runs next on the group would pair with it. A call
that was refused before it ran leaves nothing behind; groups that are made again are new ones.
"""

from threading import Lock
from weakref import ref

_LOCK = Lock()
_found: list[tuple[ref[object], str]] = []  # groups live on other threads' runners too; empty until one fails


def note_half_done(group: object, why: str) -> None:
    """From now on ``group`` (a process group, or what a runner agrees over) may hold half a collective."""
    with _LOCK:
        _found[:] = [(known, reason) for known, reason in _found if known() is not None]
        if half_done(group) is None:
            _found.append((ref(group), why))


def half_done(*groups: object) -> str | None:
    """Why one of ``groups`` may hold half a collective, in words; None if no call on them failed."""
    if not _found:
        return None
    return next((why for known, why in _found if any(known() is group for group in groups)), None)
