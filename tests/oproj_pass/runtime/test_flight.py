"""What a runner leaves in the flight record: its agreements, its replays, its refusals with their reasons."""

import json

import pytest

from oproj_pass.errors import EagerStepError, GroupMismatchError
from oproj_pass.flight.record import FLIGHT, FOLDER_VARIABLE


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Reads what this rank wrote; it writes by itself from now on."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr("oproj_pass.runtime.runner.write_on_signals", lambda: None)
    return lambda: json.loads((tmp_path / "rank0.json").read_text())


def test_a_refused_step_is_written_with_its_reason(written, serving, batch, peer):
    runner = serving(group=peer)
    peer.num_tokens = 40
    with pytest.raises(EagerStepError):
        runner.step({"x": batch(3)})
    record = written()
    assert "rank 1 brings 40 tokens" in record["reason"]
    last = record["entries"][-1]
    assert (last["what"], last["brought"]) == ("agreement", "STEP, 3 tokens, FULL")
    assert last["agreed"] == "40 tokens, FULL"


def test_a_lost_rank_is_written_with_its_agreement(written, serving, batch, peer):
    runner = serving(group=peer)
    peer.lost = "it did not come within 4 s"
    with pytest.raises(GroupMismatchError):
        runner.step({"x": batch(3)})
    agreement, failure = written()["entries"][-2:]
    assert "rank 1 is lost" in agreement["problem"]
    assert failure["what"] == "failure"


def test_a_served_step_is_an_agreement_and_a_replay(written, serving, batch, peer):
    runner = serving(group=peer)
    runner.step({"x": batch(3)})
    FLIGHT.write("asked")
    agreement, replay = written()["entries"][-2:]
    assert (agreement["what"], replay["what"], replay["brought"]) == ("agreement", "replay", "size 4")
    assert agreement["number"] == replay["number"] == runner.num_agreements - 1
    assert replay["ended"] >= agreement["ended"]
