"""A replay that does not end on its device ends the process, unless the device has a timeout of its own."""

import gc
import threading

import pytest
import torch

from oproj_pass.devices import DEVICES
from oproj_pass.runtime import replay_limit
from oproj_pass.runtime.device_graph import CallableGraph
from oproj_pass.runtime.replay_limit import EXIT_STATUS, Watchdog, limit_replays


class Event:
    def __init__(self, device):
        self.device = device

    def record(self):
        self.number = self.device.launched
        self.device.launched += 1

    def query(self):
        return self.number < self.device.finished


class Device:
    """Runs what is launched when the test says so."""

    launched = finished = 0

    def Event(self):
        return Event(self)


class Clock:
    now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        threading.Event().wait()


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(replay_limit, "time", clock)
    return clock


@pytest.fixture
def watched(clock):
    """The device, its watchdog, a watched graph, and the statuses that ended the process."""
    device, ended = Device(), []
    watchdog = Watchdog(device, 4.0, "model", end=ended.append)
    return device, watchdog, watchdog.watched(CallableGraph(lambda: "rows")), ended


def test_replays_that_end_are_forgotten(watched, clock):
    device, watchdog, graph, ended = watched
    assert [graph.replay() for _ in range(3)] == ["rows"] * 3
    clock.now, device.finished = 3.0, 3
    watchdog.check()
    clock.now = 100.0
    watchdog.check()
    assert ended == []


def test_a_replay_that_does_not_end_ends_the_process_with_a_record(
    watched, clock, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("OPROJ_FLIGHT_DIR", str(tmp_path))
    device, watchdog, graph, ended = watched
    graph.replay()
    device.finished = 1
    graph.replay()
    clock.now = 3.9
    watchdog.check()
    assert ended == []
    clock.now = 4.1
    watchdog.check()
    assert ended == [EXIT_STATUS]
    assert "model: a replay has not ended within 4 s" in caplog.text
    assert str(tmp_path) in caplog.text
    assert "has not ended" in next(tmp_path.glob("*.json")).read_text()


def test_the_watching_thread_ends_with_its_watchdog():
    def threads():
        return [thread for thread in threading.enumerate() if thread.name == "watches replays of short"]

    watchdog = Watchdog(Device(), 0.01, "short")
    (thread,) = threads()
    del watchdog
    gc.collect()
    thread.join(5)
    assert threads() == []


def test_a_device_with_a_timeout_of_its_own_gets_it(monkeypatch, caplog, peer):
    set_to = []
    module = type("npu", (), {DEVICES["npu"].timeout_setter: staticmethod(set_to.append)})
    monkeypatch.setattr(torch, "npu", module, raising=False)
    monkeypatch.setenv("HCCL_EXEC_TIMEOUT", "1836")
    graph = CallableGraph(lambda: None)
    assert limit_replays(torch.device("meta"), 4.0, "model", peer)(graph) is graph
    limit_replays(_Npu(), 4.0, "model", None)  # alone in the world
    assert set_to == []
    assert limit_replays(_Npu(), 4.0, "model", peer)(graph) is graph
    assert set_to == [4000]
    assert "HCCL_EXEC_TIMEOUT is 1836" in caplog.text
    caplog.clear()
    monkeypatch.setenv("HCCL_EXEC_TIMEOUT", "4")
    limit_replays(_Npu(), 4.0, "model", peer)
    assert caplog.text == ""


class _Npu:
    type = "npu"


def test_a_replay_that_is_a_call_is_left_to_the_groups_timeout(peer):
    graph = CallableGraph(lambda: None)
    assert limit_replays(torch.device("cpu"), 4.0, "model", peer)(graph) is graph
