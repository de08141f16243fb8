"""The flight record keeps what a rank did last, and is written where one is wanted."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from torch.distributed import distributed_c10d

from oproj_pass.flight import signals
from oproj_pass.flight.graph_call import GraphCall
from oproj_pass.flight.record import FLIGHT, FOLDER_VARIABLE, FlightRecord


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Of rank 0, whichever rank this process was for an earlier test."""
    monkeypatch.setattr(FLIGHT, "rank", 0)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "flight"))
    return tmp_path / "flight"


def written(folder, rank=0):
    return json.loads((folder / f"rank{rank}.json").read_text())


def wait_until(happened):
    """The system may hand a signal to any thread; Python's handler then runs a moment later."""
    ends = time.monotonic() + 20
    while not happened() and time.monotonic() < ends:
        time.sleep(0.01)
    return happened()


def names_signal(folder, name):
    return (folder / "rank0.json").exists() and name in written(folder)["reason"]


def test_keeps_the_last_entries_only():
    record = FlightRecord(last=2)
    for number in range(5):
        record.begin("agreement", "model", number, "3 tokens").end("3 tokens, FULL")
    assert [entry["number"] for entry in record.as_json("")["entries"]] == [3, 4]


def test_tells_what_has_not_ended():
    record = FlightRecord()
    record.begin("agreement", "model", 0, "3 tokens").end("3 tokens, FULL")
    record.begin("replay", "model", 0, 4)
    first, stuck = record.as_json("")["entries"]
    assert first["ended"] >= first["began"]
    assert (stuck["what"], stuck["brought"], stuck["ended"]) == ("replay", "4", None)


def test_writes_nothing_where_no_folder_is_named(monkeypatch):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    assert FLIGHT.write("a refusal") is None


def test_says_that_it_cannot_write_and_raises_nothing(tmp_path, monkeypatch, caplog):
    (tmp_path / "a file").touch()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "a file"))
    assert FLIGHT.write("a refusal") is None
    assert "cannot be written" in caplog.text


def test_a_write_inside_another_one_leaves_both_whole(folder, monkeypatch):
    """As when a signal arrives while a refusal is written, or its two ways of being noticed meet."""
    record, as_json = FlightRecord(), FlightRecord.as_json

    def interrupted(self, reason):
        if reason == "outer":
            assert self.write("inner") is not None
        return as_json(self, reason)

    monkeypatch.setattr(FlightRecord, "as_json", interrupted)
    replace = Path.replace

    def interrupted_replace(self, target):
        if json.loads(self.read_text())["reason"] == "outer":
            assert record.write("last") is not None
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", interrupted_replace)
    assert record.write("outer") is not None
    assert written(folder)["reason"] == "outer"
    assert [path.name for path in folder.iterdir()] == ["rank0.json"]


@pytest.fixture
def handled(monkeypatch):
    """Signals as they were, once the test is over."""
    before = {number: signal.getsignal(number) for number in signals._SIGNALS}
    monkeypatch.setattr(signals._Armed, "done", False)
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_writes_the_record_and_does_what_it_did(folder, handled):
    seen = []
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    signals.write_on_signals()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert wait_until(lambda: names_signal(folder, "SIGUSR1"))
    os.kill(os.getpid(), signal.SIGTERM)
    assert wait_until(lambda: seen == [signal.SIGTERM])
    assert wait_until(lambda: names_signal(folder, "SIGTERM"))


def test_signals_are_left_alone_where_no_folder_is_named(monkeypatch, handled):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    before = signal.getsignal(signal.SIGUSR1)
    signals.write_on_signals()
    assert signal.getsignal(signal.SIGUSR1) is before


class CountingGroup:
    """A process group that has begun ``begun`` collectives; None: one that cannot tell, as torch has it."""

    def __init__(self, begun):
        self.begun = begun

    def _get_sequence_number_for_group(self):
        if self.begun is None:
            raise RuntimeError("ProcessGroup custom does not yet support sequence numbers.")
        return self.begun


@pytest.fixture
def backends(monkeypatch):
    """The backend of every group that lives, to fill in."""
    known = {}
    monkeypatch.setattr(distributed_c10d, "_pg_map", known)
    return known


def test_counts_a_graphs_collectives_over_all_its_groups(backends):
    groups = [CountingGroup(3), CountingGroup(9)]
    backends.update({groups[0]: ("gloo", None), groups[1]: ("nccl", None)})
    call = GraphCall.begin(["all_gather", "all_to_all"], groups)
    groups[1].begun += 2
    assert call.as_json() == {"begun": 2, "before": 12, "collectives": ["all_gather", "all_to_all"]}
    del backends[groups[1]]
    assert call.as_json() is None


def test_asks_no_group_that_cannot_count(backends):
    groups = [CountingGroup(3), CountingGroup(None)]
    backends.update({groups[0]: ("gloo", None), groups[1]: ("custom", None)})
    assert GraphCall.begin(["all_gather"], groups) is None


def test_a_call_that_ended_leaves_no_graph_in_the_record():
    assert FlightRecord().as_json("")["graph"] is None
