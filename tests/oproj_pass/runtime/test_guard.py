"""With a peer, a step that no graph serves is refused after dispatch; alone, nothing is."""

import pytest
import torch

from oproj_pass.capture import GraphMode, StepBound, plan_capture
from oproj_pass.errors import ConfigError, EagerStepError, GroupMismatchError


def test_a_covered_step_replays_at_the_largest_count(serving, batch, peer):
    runner = serving(group=peer)
    peer.num_tokens = 7
    assert torch.equal(runner.step({"x": batch(3)}), 2 * batch(3))
    assert runner.last_step.agreement.num_tokens == 7
    assert runner.last_step.tokens_by_rank == {0: 3, 1: 7}


@pytest.mark.parametrize(
    ("mine", "theirs", "messages"),
    [
        (
            {"num_tokens": 17},
            {},
            ["rank 0 brings 17 tokens", "largest captured size is 16", "max_num_seqs = 16"],
        ),
        ({}, {"num_tokens": 40}, ["rank 1 brings 40 tokens"]),
        ({"mode": GraphMode.NONE}, {}, ["rank 0 cannot replay", "graph mode NONE"]),
        (
            {},
            {"mode": GraphMode.NONE, "reason": "its graph is gone"},
            ["rank 1 cannot replay: its graph is gone"],
        ),
        ({"uniform_decode": False}, {}, ["rank 0", "mixed or prefill", "Keep prefill on prefill nodes"]),
        ({"rows": 40, "uniform_decode": False}, {}, ["batch of 40 tokens", "same number of rows"]),
    ],
)
def test_refuses_and_names_the_rank_and_the_cause(serving, batch, peer, mine, theirs, messages):
    runner = serving(group=peer)
    for field, value in theirs.items():
        setattr(peer, field, value)
    with pytest.raises(EagerStepError) as caught:
        runner.step({"x": batch(mine.pop("rows", 3))}, **mine)
    assert all(message in str(caught.value) for message in messages)


def test_a_plan_that_does_not_cover_says_what_to_raise(serving, batch, peer, caplog):
    runner = serving(group=peer, plan=plan_capture(StepBound(16, 64), max_size=8))
    assert "Raise max_cudagraph_capture_size to 16" in caplog.text
    with pytest.raises(EagerStepError, match="Raise max_cudagraph_capture_size to 16"):
        runner.step({"x": batch(9)})


def test_idle_ranks_refuse_with_their_peers(serving, peer):
    runner = serving(group=peer)
    runner.idle_step({})
    peer.num_tokens = 17
    with pytest.raises(EagerStepError, match="rank 1 brings 17 tokens"):
        runner.idle_step({})


def test_piecewise_passes_and_the_lowest_mode_is_agreed(serving, batch, peer):
    runner = serving(group=peer)
    peer.mode = GraphMode.PIECEWISE
    runner.step({"x": batch(3)})
    assert runner.last_step.agreement.mode is GraphMode.PIECEWISE
    assert runner.last_step.agreement.forced_by == (1,)


def test_exactly_one_agreement_a_step_even_where_it_is_refused(serving, batch, peer):
    runner = serving(group=peer)
    before = runner.num_agreements
    runner.step({"x": batch(3)})
    with pytest.raises(EagerStepError):
        runner.step({"x": batch(17)})
    with pytest.raises(ConfigError):
        runner.step({"x": batch(3).double()})
    runner.idle_step({})
    assert runner.num_agreements - before == 4


def test_a_rank_that_refuses_its_inputs_tells_its_peers(serving, batch, peer):
    runner = serving(group=peer)
    with pytest.raises(ConfigError, match=r"'x' is torch\.float64"):
        runner.step({"x": batch(3).double()})
    assert peer.rows[-1].mode is GraphMode.NONE
    assert "'x' is torch.float64" in peer.rows[-1].reason


def test_a_lost_peer_stops_the_runner(serving, batch, peer):
    runner = serving(group=peer)
    peer.lost = "it did not come within 4 s"
    for _ in range(2):
        with pytest.raises(GroupMismatchError, match="rank 1 is lost, it did not come within 4 s"):
            runner.step({"x": batch(3)})


@pytest.mark.parametrize("step", [{"rows": 40}, {"rows": 3, "mode": GraphMode.NONE}, {"rows": 0}])
def test_alone_nothing_is_refused(serving, batch, step):
    runner = serving()
    x = batch(step.pop("rows"))
    assert not runner.armed
    assert torch.equal(runner.step({"x": x}, **step), 2 * x)
    assert runner.num_agreements == 0
