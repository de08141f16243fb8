"""A runner counts what its steps came to: how they ran, what was refused and why, how long ranks agreed."""

import pytest

from oproj_pass.capture import GraphMode
from oproj_pass.errors import ConfigError, EagerStepError, GroupMismatchError
from oproj_pass.metrics.counts import BOUNDS, Durations, StepCounts


def test_counts_replays_and_idle_steps_among_them(serving, batch, peer):
    runner = serving(group=peer)
    for rows in (3, 1):
        runner.step({"x": batch(rows)})
    runner.idle_step({})
    assert runner.counts.steps == {"replayed": 3, "eager": 0, "wide": 0}
    assert runner.counts.idle_steps == 1
    assert runner.counts.agreements.cumulative[-1] == 3
    assert not runner.counts.refusals


@pytest.mark.parametrize(
    ("theirs", "reason", "error"),
    [
        ({"num_tokens": 17}, "oversize", EagerStepError),
        ({"mode": GraphMode.NONE}, "cannot_replay", EagerStepError),
        ({"lost": "it did not come within 4 s"}, "group", GroupMismatchError),
    ],
)
def test_counts_a_refused_step_by_its_reason_and_not_as_one_that_ran(
    serving, batch, peer, theirs, reason, error
):
    runner = serving(group=peer)
    for name, value in theirs.items():
        setattr(peer, name, value)
    with pytest.raises(error):
        runner.step({"x": batch(3)})
    assert runner.counts.refusals == {reason: 1}
    assert sum(runner.counts.steps.values()) == 0


def test_counts_inputs_that_do_not_fit(serving, batch, peer):
    runner = serving(group=peer)
    with pytest.raises(ConfigError):
        runner.step({"y": batch(3)})
    assert runner.counts.refusals == {"cannot_replay": 1}


def test_counts_a_replay_that_fails(serving, batch, peer, monkeypatch):
    runner = serving(group=peer)

    def fail(*_):
        raise RuntimeError("device assert")

    monkeypatch.setattr(runner._serving, "_replay", fail)
    with pytest.raises(GroupMismatchError, match="device assert"):
        runner.step({"x": batch(3)})
    assert runner.counts.refusals == {"failed": 1}


def test_a_rank_alone_counts_what_it_ran_eager(serving, batch):
    runner = serving()
    for rows in (3, 40):
        runner.step({"x": batch(rows)})
    assert runner.counts.steps == {"replayed": 1, "eager": 1, "wide": 0}
    assert runner.counts.agreements.cumulative[-1] == 0


def test_durations_fall_into_the_bucket_whose_bound_they_do_not_pass():
    durations = Durations()
    for seconds in (0.0, BOUNDS[0], BOUNDS[1], 2 * BOUNDS[-1]):
        durations.add(seconds)
    assert durations.cumulative[:2] == [2, 3]
    assert durations.cumulative[-2:] == [3, 4]
    assert durations.seconds == BOUNDS[0] + BOUNDS[1] + 2 * BOUNDS[-1]


def test_bytes_are_unknown_from_the_first_step_on_that_does_not_know_them():
    counts = StepCounts()
    sent = []
    for nbytes in (10, None, 10):
        counts.add_step("replayed", nbytes, idle=False)
        sent.append(counts.sent_nbytes)
    assert sent == [10, None, None]
