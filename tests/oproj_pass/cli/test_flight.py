"""`oproj flight`: where the records of several ranks first differ."""

import json

import pytest

from oproj_pass.flight.record import FlightRecord


@pytest.fixture
def records(tmp_path):
    """Writes a record for each rank; True where its last replay ended."""

    def write(*ended):
        paths = []
        for rank, has_ended in enumerate(ended):
            record = FlightRecord()
            record.rank = rank
            record.begin("agreement", "model", 7, "3 tokens").end("[3] tokens")
            replay = record.begin("replay", "model", 7, 4)
            if has_ended:
                replay.end()
            paths.append(tmp_path / f"rank{rank}.json")
            paths[-1].write_text(json.dumps(record.as_json("SIGTERM")))
        return paths

    return write


def test_names_the_step_the_collective_and_who_is_stuck(oproj, records):
    result = oproj("flight", *records(True, False))
    assert result.exit_code == 1
    assert "first differ in agreement 7 of 'model', in its replay" in result.stdout
    assert "rank 1: replay 7 of 'model', brings 4: began and has not ended" in result.stdout
    assert "rank 0 wrote its record on: SIGTERM" in result.stdout


def test_json_has_the_same(oproj, records):
    found = json.loads(oproj("flight", *records(True, False, True), "--json").stdout)["difference"]
    assert (found["runner"], found["agreement"], found["collective"]) == ("model", 7, "replay")
    assert "has not ended" in found["ranks"]["1"]


def test_ranks_in_step_are_no_difference(oproj, records):
    result = oproj("flight", *records(True, True))
    assert result.exit_code == 0
    assert "in step as far as their records go" in result.stdout


def test_one_record_is_not_enough(oproj, records):
    assert oproj("flight", records(True)[0]).exit_code == 2
