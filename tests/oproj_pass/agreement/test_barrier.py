"""A rank that waits long for its peers' graph says so while it waits."""

import logging
from threading import Event

import pytest

from oproj_pass.agreement import barrier
from oproj_pass.agreement.step_group import Replies
from oproj_pass.agreement.wire import StepKind


class Group:
    ranks, rank, has_peers, device = (4, 5), 1, True, object()


@pytest.fixture
def heard(monkeypatch):
    """Set by the first warning; a peer answers after it, or after ``patience`` seconds."""
    event, handler = Event(), logging.Handler(logging.WARNING)
    handler.emit = lambda record: (setattr(event, "words", record.getMessage()), event.set())
    barrier.logger.addHandler(handler)
    yield event
    barrier.logger.removeHandler(handler)


def meet(monkeypatch, kind, heard, patience):
    class Control:
        def __init__(self, group):
            pass

        def exchange(self, row, timeout):
            heard.wait(patience)
            return Replies({0: row, 1: row})

    monkeypatch.setattr(barrier, "ControlGroup", Control)
    monkeypatch.setattr(barrier, "PATIENCE", 0.01)
    return barrier.meet(Group(), kind, "words", 600)


@pytest.mark.parametrize("kind", [StepKind.GRAPH, StepKind.COMPILED])
def test_names_the_ranks_and_the_end_of_the_wait(monkeypatch, heard, kind):
    assert meet(monkeypatch, kind, heard, patience=30) == {4: "words", 5: "words"}
    assert "rank 5 has waited 0.01 s for ranks [4]" in heard.words
    assert "gives up after 600 s (option `timeout`)" in heard.words


def test_starts_no_thread_for_a_call(monkeypatch, heard):
    meet(monkeypatch, StepKind.CALL, heard, patience=0.1)
    assert not heard.is_set()
