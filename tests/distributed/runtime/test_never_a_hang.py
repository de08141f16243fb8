"""Whatever one rank does, every other one gets an error that names it and why, well before a timeout."""

from functools import partial

import pytest
import torch.distributed as dist

from oproj_pass.capture import GraphMode
from tests.distributed.runtime.ranks import TIMEOUT, batch, caught, checked_step, die, serving

pytestmark = pytest.mark.distributed
PATIENCE = 4 * TIMEOUT  # three waits and a loaded machine


@pytest.fixture(params=[2, 4])
def ranks(request):
    return request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[request.param])


def refused_step(culprit_brings, **culprit_options):
    """Rank 1 brings something else in the second step; the third is an ordinary one again."""
    runner, culprit = serving(), dist.get_rank() == 1
    checked_step(runner, 3)
    tokens, options = (culprit_brings, culprit_options) if culprit else (2, {})
    result = caught(lambda: runner.step({"x": batch(tokens)}, **options))
    checked_step(runner, 5)
    return result, runner.num_meetings


def require_refused(outcomes, *words):
    for (kind, message, seconds), _ in outcomes:
        assert kind == "EagerStepError"
        assert "rank 1" in message
        assert "rank 0" not in message
        for word in words:
            assert word in message
        assert seconds < PATIENCE
    assert len({meetings for _, meetings in outcomes}) == 1


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
    return runner.num_meetings


def test_different_counts_run_at_the_size_of_the_largest(ranks):
    assert len(set(ranks.run(different_counts))) == 1


def dying(moment):
    at_exchange = {3: die} if dist.get_rank() == 1 and moment == "inside the step" else {}
    runner = serving(fail_at=at_exchange)
    if moment == "inside the agreement" and dist.get_rank() == 1:
        control = runner._agreement.group.group.control

        def exchange(row, timeout):
            if runner.num_meetings == meetings + 2:  # only the last rank hears of it
                control.send([_tensor(row)], dist.get_world_size() - 1, 0x0970).wait()
                die()
            return original(row, timeout)

        meetings, original = runner.num_meetings, runner._agreement.group.exchange
        runner._agreement.group.exchange = exchange
    checked_step(runner, 3)
    checked_step(runner, 2)
    if moment == "before the agreement" and dist.get_rank() == 1:
        die()
    first = caught(lambda: checked_step(runner, 4))
    again = caught(lambda: checked_step(runner, 4))
    return first, again


def _tensor(row):
    import torch

    return torch.frombuffer(row, dtype=torch.uint8)


@pytest.mark.parametrize("moment", ["before the agreement", "inside the agreement", "inside the step"])
def test_a_rank_that_dies_is_named_by_every_survivor(ranks, moment):
    if ranks.world == 2 and moment == "inside the agreement":
        pytest.skip("needs a rank that heard of it and one that did not")
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
        import time

        time.sleep(2 * TIMEOUT)
    return caught(lambda: checked_step(runner, 2))


def test_a_rank_that_never_arrives_is_named_by_every_other(ranks):
    for rank, (kind, message, seconds) in enumerate(ranks.run(never_arriving)):
        assert kind == "GroupMismatchError"
        assert seconds < PATIENCE
        if rank != 1:
            assert f"rank 1 is lost, it did not come within {TIMEOUT:g} s" in message
