import pytest
from hypothesis import given
from hypothesis import strategies as st

from oproj_pass.capture import GraphMode, StepBound, agree_step, plan_capture
from oproj_pass.errors import GroupMismatchError

STEPS = st.lists(st.tuples(st.integers(0, 4096), st.sampled_from(GraphMode)), min_size=1, max_size=16)


@given(STEPS)
def test_takes_the_largest_count_and_the_lowest_mode(steps):
    agreement = agree_step(steps)
    assert agreement.num_tokens == max(tokens for tokens, _ in steps)
    assert agreement.mode == min(mode for _, mode in steps)
    assert agreement.world_size == len(steps)


@given(STEPS)
def test_names_exactly_the_ranks_that_lowered_the_mode(steps):
    agreement = agree_step(steps)
    lowest = [rank for rank, (_, mode) in enumerate(steps) if mode == agreement.mode]
    assert agreement.forced_by == (() if len(lowest) == len(steps) else tuple(lowest))


def test_one_rank_without_a_graph_makes_the_step_eager_for_all():
    agreement = agree_step([(8, GraphMode.FULL), (9, GraphMode.NONE), (4, GraphMode.FULL)])
    assert agreement.mode is GraphMode.NONE
    assert agreement.forced_by == (1,)


def test_ranks_of_different_sizes_dispatch_to_the_largest_not_the_sum():
    # sglang#5527: 5 and 6 rows with sizes 4 and 8
    plan = plan_capture(StepBound(8, 64), sizes=[4, 8])
    agreement = agree_step([(5, GraphMode.FULL), (6, GraphMode.FULL)])
    assert plan.dispatch(agreement.num_tokens) == 8


def test_an_idle_ranks_dummy_request_follows_the_busy_rank():
    # vllm#25906: 5 rows beside an idle rank's one request
    plan = plan_capture(StepBound(8, 64), sizes=[4, 8])
    assert plan.dispatch(agree_step([(5, GraphMode.FULL), (1, GraphMode.FULL)]).num_tokens) == 8


def test_modes_are_ordered_from_eager_to_full():
    assert list(GraphMode) == sorted(GraphMode)
    assert GraphMode.NONE < GraphMode.PIECEWISE < GraphMode.FULL


def test_refuses_an_empty_gather():
    with pytest.raises(GroupMismatchError, match="no rank"):
        agree_step([])
