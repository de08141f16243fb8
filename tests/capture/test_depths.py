"""Plans for speculation whose depth changes from step to step."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from oproj_pass.capture import StepBound, plan_capture
from oproj_pass.errors import ConfigError


def _bound(seqs, extra, depths):
    return StepBound(seqs, seqs + extra, max(depths), tuple(depths))


BOUNDS = st.builds(
    _bound, st.integers(1, 150), st.integers(0, 400), st.sets(st.integers(0, 8), min_size=2, max_size=5)
)
CEILINGS = st.none() | st.integers(9, 1000)


def deepest(bound):
    return StepBound(bound.max_num_seqs, bound.max_num_batched_tokens, bound.num_speculative_tokens)


def steps_of(bound):
    """Every step that a scheduler can make: requests of one depth, the last one cut by the token limit."""
    limit = bound.max_num_batched_tokens
    requests = range(1, bound.max_num_seqs + 1)
    return {min(limit, count * (1 + depth)) for depth in bound.speculative_depths for count in requests}


def test_four_depths_cost_three_graphs_more_than_the_deepest_alone():
    bound = StepBound(24, 8192, 3, (0, 1, 2, 3))
    plan, alone = plan_capture(bound), plan_capture(deepest(bound))
    assert plan.sizes == (1, 2, 3, *alone.sizes)
    assert plan.covers
    assert [plan.dispatch(tokens) for tokens in (1, 2, 3, 24, 72, 96)] == [1, 2, 3, 24, 72, 96]


@given(BOUNDS)
def test_every_step_of_every_depth_is_reachable(bound):
    assert set(bound.reachable_steps()) == steps_of(bound)


@given(BOUNDS, CEILINGS)
def test_every_step_up_to_the_largest_has_a_size(bound, max_size):
    plan = plan_capture(bound, max_size=max_size)
    steps = [step for step in steps_of(bound) if max_size is None or step <= max_size]
    assert all(plan.dispatch(step) is not None for step in steps if max_size or step <= 512)
    assert plan.covers == (bound.max_decode_tokens <= plan.max_size)
    assert set(plan.sizes) <= set(bound.reachable_steps())


@given(BOUNDS, CEILINGS)
def test_the_depths_cost_at_most_three_graphs_for_ten(bound, max_size):
    plan, alone = plan_capture(bound, max_size=max_size), plan_capture(deepest(bound), max_size=max_size)
    assert len(plan.sizes) <= 1.3 * len(alone.sizes)


@given(BOUNDS)
def test_a_covering_plan_keeps_every_size_of_the_deepest(bound):
    plan = plan_capture(bound, max_size=bound.max_decode_tokens)
    assert set(plan_capture(deepest(bound), max_size=bound.max_decode_tokens).sizes) <= set(plan.sizes)


@given(BOUNDS, st.lists(st.integers(1, 1000), min_size=1, max_size=8))
def test_every_step_up_to_a_users_largest_size_is_captured(bound, sizes):
    assume(max(sizes) >= bound.query_lens[0])
    plan = plan_capture(bound, sizes=sizes)
    assert all(plan.dispatch(step) is not None for step in steps_of(bound) if step <= max(sizes))
    assert set(plan.sizes) <= set(bound.reachable_steps())


def test_a_users_list_keeps_the_sizes_of_shallow_steps():
    assert plan_capture(StepBound(16, 64, 3, (0, 1, 2, 3)), sizes=[1, 2, 5, 64]).sizes == (1, 2, 5, 64)
    assert plan_capture(StepBound(16, 64, 3, (1, 3)), sizes=[1, 5, 64]).sizes == (2, 6, 64)


def test_one_depth_is_no_change_of_depth():
    assert StepBound(8, 64, 3, (3, 3)) == StepBound(8, 64, 3)


def test_an_idle_rank_brings_one_request_of_the_least_depth():
    assert StepBound(8, 64, 3, [3, 1]).idle_tokens == 2


@pytest.mark.parametrize(
    ("depths", "message"),
    [
        ((0, 2), r"speculative_depths=\(0, 2\): the deepest is 2, required: num_speculative_tokens=3"),
        ((0, 4), "the deepest is 4"),
        ((-1, 3), "speculative_depths=-1 must be at least 0"),
        ((1.0, 3), "speculative_depths=1.0 must be an integer"),
    ],
)
def test_refuses_depths_that_are_none_of_the_bound(depths, message):
    with pytest.raises(ConfigError, match=message):
        StepBound(8, 64, 3, depths)
