"""Frames under ``with_room`` cost no system calls."""

import resource
from concurrent.futures import ThreadPoolExecutor

from tests.support.system_calls import with_room

DEPTHS, CALLS = 300, 50


def faults_of_calls_at_every_depth():
    """Page faults of calls on both sides of the end of every chunk of frames."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for depth in range(DEPTHS):
        call_at(depth)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def call_at(depth):
    if depth:
        return call_at(depth - 1)
    for _ in range(CALLS):
        leaf()
    return None


def leaf():
    return None


def test_maps_no_memory_for_calls_within_it():
    with ThreadPoolExecutor(1) as thread:  # which has frames of its own: a test has room already
        without = thread.submit(faults_of_calls_at_every_depth).result()
        within = thread.submit(with_room, faults_of_calls_at_every_depth).result()
    assert within < without / 10
