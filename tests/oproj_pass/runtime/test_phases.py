"""Warm-up passes, capture happens once, serving comes after it."""

import pytest
import torch

from oproj_pass.errors import EagerStepError, GroupMismatchError
from oproj_pass.runtime import DecodeRunner, Phase, StepKind


def test_captures_the_planned_sizes_largest_first_on_padding(serving, peer):
    seen = []

    def model(x, slots):
        seen.append((len(x), x.abs().sum().item(), set(slots.tolist())))
        return x

    runner = serving(
        model,
        rows={"x": 0, "slots": 0},
        pad={"slots": -1},
        example={"x": torch.ones(2, 3), "slots": torch.ones(2)},
        group=peer,
    )
    assert list(dict.fromkeys(size for size, _, _ in seen)) == [16, 8, 4, 1]
    assert {(total, *slots) for _, total, slots in seen} == {(0.0, -1.0)}
    assert runner.phase is Phase.SERVING
    assert [row.num_tokens for row in peer.rows] == [16, 8, 4, 1]
    assert {row.kind for row in peer.rows} == {StepKind.CAPTURE}


def test_warm_up_passes_unguarded_whatever_its_size(plan, peer, batch):
    runner = DecodeRunner(lambda x: 2 * x, plan, rows={"x": 0}, group=peer)
    assert torch.equal(runner.warm_up({"x": batch(60)}), 2 * batch(60))


def test_a_step_before_capture_and_a_second_capture_are_refused(plan, serving, batch):
    runner = DecodeRunner(lambda x: 2 * x, plan, rows={"x": 0})
    with pytest.raises(EagerStepError, match="step needs phase SERVING, the runner is in WARMUP"):
        runner.step({"x": batch(1)})
    with pytest.raises(EagerStepError, match="capture needs phase WARMUP, the runner is in SERVING"):
        serving().capture({"x": batch(1)})
    with pytest.raises(EagerStepError, match="warm_up needs phase WARMUP"):
        serving().warm_up({"x": batch(1)})


def test_a_model_that_fails_tells_its_peers_and_stops(serving, batch, peer):
    failing = []

    def model(x):
        if failing:
            raise ZeroDivisionError("inside the model")
        return x

    runner = serving(model, group=peer)
    failing.append(True)
    with pytest.raises(GroupMismatchError, match=r"on rank 0: replay failed: inside the model"):
        runner.step({"x": batch(2)})
    assert peer.rows[-1].kind is StepKind.FAILED
    assert "ZeroDivisionError: inside the model" in peer.rows[-1].reason
    failing.clear()
    with pytest.raises(GroupMismatchError, match="stopped earlier: replay failed"):
        runner.step({"x": batch(2)})


def test_alone_a_models_error_is_its_own(serving, batch):
    runner = serving(lambda x: [x][int(x.sum() == 6)])
    with pytest.raises(IndexError):
        runner.step({"x": batch(1)})


def test_the_captured_graphs_collectives_wait_no_longer_than_a_step(serving, peer):
    serving(group=peer, timeout=7)
    assert peer.limit == 7
