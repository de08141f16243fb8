"""Whatever one rank does, every other one gets an error that names it and why, well before a timeout."""

import time
from functools import partial

import pytest
import torch
import torch.distributed as dist

from oproj_pass.agreement import step_group
from oproj_pass.capture import GraphMode
from oproj_pass.runtime import StepKind, StepRow
from tests.distributed.runtime.ranks import PATIENCE, TIMEOUT, batch, caught, checked_step, die, serving

pytestmark = pytest.mark.distributed


def refused_step(culprit_brings, **culprit_options):
    """Rank 1 brings something else in the second step; the third is an ordinary one again."""
    runner, culprit = serving(), dist.get_rank() == 1
    checked_step(runner, 3)
    tokens, options = (culprit_brings, culprit_options) if culprit else (2, {})
    result = caught(lambda: runner.step({"x": batch(tokens)}, **options))
    checked_step(runner, 5)
    return result, runner.num_agreements


def require_refused(outcomes, *words):
    for (kind, message, seconds), _ in outcomes:
        assert kind == "EagerStepError"
        assert "rank 1" in message
        assert "rank 0" not in message
        for word in words:
            assert word in message
        assert seconds < PATIENCE
    assert len({agreements for _, agreements in outcomes}) == 1


def test_one_eager_rank_makes_every_rank_refuse_and_the_next_step_runs(ranks):
    require_refused(ranks.run(partial(refused_step, 2, mode=GraphMode.NONE)), "graph mode NONE")


def test_one_oversize_rank_makes_every_rank_refuse(ranks):
    require_refused(ranks.run(partial(refused_step, 9)), "9 tokens", "largest captured size is 8")


def test_one_prefill_batch_makes_every_rank_refuse(ranks):
    require_refused(ranks.run(partial(refused_step, 6, uniform_decode=False)), "mixed or prefill")


def unfit_inputs():
    runner = serving()
    x = batch(3).double() if dist.get_rank() == 1 else batch(3)
    result = caught(lambda: runner.step({"x": x}))
    checked_step(runner, 2)
    return result


def test_unfit_inputs_on_one_rank_reach_its_peers(ranks):
    for rank, (kind, message, seconds) in enumerate(ranks.run(unfit_inputs)):
        assert kind == ("ConfigError" if rank == 1 else "EagerStepError")
        assert "input 'x' is torch.float64" in message
        assert seconds < PATIENCE


def different_counts():
    runner = serving()
    counts = [(1, 8, 3, 6), (5, 6, 1, 2), (0, 3, 8, 8), (4, 0, 0, 0)]
    for step in counts:
        checked_step(runner, step[dist.get_rank()])
    return runner.num_agreements


def test_different_counts_run_at_the_size_of_the_largest(ranks):
    assert len(set(ranks.run(different_counts))) == 1


def dying(moment):
    runner, culprit = serving(), dist.get_rank() == 1
    checked_step(runner, 3)
    if culprit and moment == "before the agreement":
        die()
    if culprit and moment == "inside the agreement":
        tell_only_one_rank(runner)
        die()
    if culprit and moment == "inside the step":
        runner.fn.fail_at = {2: die}
    return [caught(lambda: checked_step(runner, 4)) for _ in range(2)]


def tell_only_one_rank(runner):
    row = StepRow("model", StepKind.STEP, runner.num_agreements, 4, GraphMode.FULL).pack()
    told = 0 if dist.get_world_size() == 2 else 2
    control = runner._peers.group.group.control
    control.send([torch.frombuffer(row, dtype=torch.uint8)], told, step_group._TAG).wait()


@pytest.mark.parametrize("moment", ["before the agreement", "inside the agreement", "inside the step"])
def test_a_rank_that_dies_is_named_by_every_survivor(ranks, moment):
    outcomes = ranks.outcomes(dying, moment)
    assert outcomes.pop(1)[0] == "lost"
    for kind, value in outcomes:
        assert kind == "result", value
        (name, message, seconds), (again, stopped, at_once) = value
        assert name == again == "GroupMismatchError"
        assert "rank 1 is lost" in message
        assert "rank 1 is lost" in stopped
        assert seconds < PATIENCE
        assert at_once < 1


def never_arriving():
    runner = serving()
    checked_step(runner, 3)
    if dist.get_rank() == 1:
        time.sleep(2 * TIMEOUT)
    return caught(lambda: checked_step(runner, 2))


def test_a_rank_that_never_arrives_is_named_by_every_other(ranks):
    for rank, (kind, message, seconds) in enumerate(ranks.run(never_arriving)):
        assert kind == "GroupMismatchError"
        assert seconds < PATIENCE
        if rank != 1:
            assert f"rank 1 is lost, it did not come within {TIMEOUT:g} s" in message
