"""Spares a test process system calls of which it would make hundreds of thousands."""

import ctypes
import sys

_SET_TIMER_SLACK = 29  # PR_SET_TIMERSLACK of prctl(2)
_NANOSECONDS = 10_000_000
_SLOTS = 2**17  # of 8 bytes: with the frame's own fields a little more than 1 MiB, in a chunk of 2


def let_pollers_sleep():
    """Threads and processes that this thread starts sleep 10 ms where they ask for less.

    One thread of torch_npu looks for work every microsecond, for a quarter of a process's CPU seconds.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, _NANOSECONDS)


def with_room(function, *args):
    """``function(*args)``, with all Python frames below it in the chunk of memory that this one opens.

    CPython keeps frames in chunks of 16 KiB or of the next power of two that holds a larger frame; each call
    across the end of one maps the next, and its return unmaps it: tens of thousands of times in a tracer.
    """
    return function(*args)


with_room.__code__ = with_room.__code__.replace(co_stacksize=_SLOTS)
