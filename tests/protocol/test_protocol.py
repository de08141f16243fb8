"""Every schedule of two and three ranks keeps the promises of the step protocol."""

import logging

import pytest

from tests.protocol.explore import explore
from tests.protocol.searches import NO_DEVICE_TIMEOUT, SEARCHES, WATCHED_DEVICE
from tests.protocol.table import print_schedule
from tests.protocol.tape import SERVED, STOPPED


@pytest.mark.parametrize("name", SEARCHES)
def test_keeps_its_promises_in_every_schedule(name, caplog):
    caplog.set_level(logging.ERROR)
    with SEARCHES[name].start() as start:
        found = explore(start)
        assert found.violation is None, f"{found.violation}\n{print_schedule(start, found.schedule)}"
    print(f"\n{name}: {found.num_states} states, {found.num_transitions} transitions, {found.num_ends} ends")


def test_a_collective_that_no_timeout_reaches_is_a_hang():
    with NO_DEVICE_TIMEOUT.start() as start:
        assert "waits for ever" in explore(start).violation


def test_a_rank_that_finished_the_last_step_may_not_hear_of_a_loss():
    """Two generals: whoever sends the last word cannot know that it arrived."""

    def one_rank_served_what_another_lost(state, *, is_end):
        last = [local.outcomes[-1].result for local in state.ranks if is_end and local.outcomes]
        return {SERVED, STOPPED} <= set(last) or None

    with WATCHED_DEVICE.start() as start:
        assert explore(start, one_rank_served_what_another_lost).schedule
