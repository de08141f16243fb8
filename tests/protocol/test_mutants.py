"""The search finds every seeded fault of the protocol, and its schedule reads back to the same violation."""

import logging

import pytest

from tests.protocol.explore import explore, successors
from tests.protocol.invariants import violation
from tests.protocol.mutants import MUTANTS
from tests.protocol.table import print_schedule, replay


@pytest.mark.parametrize("name", MUTANTS)
def test_finds_it_and_replays_its_schedule(name, caplog):
    caplog.set_level(logging.ERROR)
    mutant = MUTANTS[name]
    with mutant.seeded(), mutant.search.start() as start:
        found = explore(start)
        assert found.violation is not None
        table = print_schedule(start, found.schedule)
        end = replay(start, table)
        assert violation(end, is_end=not successors(end)) == found.violation
    print(f"\n{name}: {found.violation}\n{table}")
