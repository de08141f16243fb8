"""The first entry at which ranks differ is found and told, whatever else their records hold."""

import pytest

from oproj_pass.errors import ConfigError
from oproj_pass.flight.compare import first_difference, read_record
from oproj_pass.flight.record import FlightRecord


def record_of(rank, *steps, drop=0, stuck=None):
    """Steps are the tokens agreed; ``stuck``: what has not ended in one more step."""
    record = FlightRecord()
    record.rank = rank
    for number, tokens in enumerate(steps):
        record.begin("agreement", "model", number, f"{rank} tokens").end(f"{tokens} tokens")
        record.begin("replay", "model", number, 4).end()
    if stuck == "replay":
        record.begin("agreement", "model", len(steps), "1 tokens").end("5 tokens")
    if stuck is not None:
        record.begin(stuck, "model", len(steps), 4)
    found = record.as_json("asked")
    found["entries"] = found["entries"][drop:]
    return found


def test_ranks_in_step_do_not_differ():
    assert first_difference([record_of(0, 3, 5), record_of(1, 3, 5)]) is None


def test_what_each_rank_brings_is_no_difference_but_what_they_agree_on_is():
    difference = first_difference([record_of(0, 3, 5), record_of(1, 3, 6)])
    assert (difference.what, difference.number) == ("agreement", 1)
    assert "agreed 5 tokens" in difference.by_rank[0]
    assert "agreed 6 tokens" in difference.by_rank[1]


@pytest.mark.parametrize("what", ["agreement", "replay"])
def test_names_the_collective_that_one_rank_never_left(what):
    difference = first_difference([record_of(0, 3, 5), record_of(1, 3, stuck=what)])
    assert (difference.what, difference.number) == (what, 1)
    assert "began and has not ended" in difference.by_rank[1]


def test_names_a_rank_that_never_came():
    difference = first_difference([record_of(0, 3, stuck="agreement"), record_of(1, 3)])
    assert difference.by_rank[1] == "has not come there; its last is replay 0 of 'model'"


def test_records_that_begin_at_different_steps_are_aligned():
    assert first_difference([record_of(0, 3, 5, 2, drop=2), record_of(1, 3, 5, 2)]) is None


LINES = ["all_gather of layers.0", "reduce_scatter of layers.0", "all_to_all of head"]


def stuck_in_graph(rank, begun, before=12, lines=LINES):
    record = record_of(rank, 3, stuck="replay")
    return record | {"graph": {"begun": begun, "before": before, "collectives": lines}}


def test_names_the_first_collective_that_not_every_rank_has_begun():
    difference = first_difference([stuck_in_graph(0, 3), stuck_in_graph(1, 1), stuck_in_graph(2, 1)])
    assert (difference.what, difference.number) == ("replay", 1)
    assert difference.collective == "collective 2 of 3, reduce_scatter of layers.0"
    assert difference.by_rank[1].endswith("it has begun 1 of 3 collectives, the last all_gather of layers.0")


@pytest.mark.parametrize(
    "other", [{"begun": 3}, {"begun": 1, "before": 9}, {"begun": 1, "lines": LINES[:2]}, {"begun": 9}]
)
def test_ranks_as_far_as_each_other_or_in_other_calls_do_not_differ_in_a_collective(other):
    first = stuck_in_graph(0, 9 if other == {"begun": 9} else 3)
    assert first_difference([first, stuck_in_graph(1, **other)]) is None


def test_refuses_records_of_one_rank_and_of_other_runs():
    with pytest.raises(ConfigError, match="of the same rank"):
        first_difference([record_of(0, 3), record_of(0, 3)])
    with pytest.raises(ConfigError, match="no entry in common"):
        first_difference([record_of(0, 3, 4, drop=2), record_of(1, 3)])


def test_refuses_a_file_that_is_no_record(tmp_path):
    (tmp_path / "rank0.json").write_text('{"rank": 0}')
    with pytest.raises(ConfigError, match="is not a flight record"):
        read_record(tmp_path / "rank0.json")
