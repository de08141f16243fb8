from hypothesis import given
from hypothesis import strategies as st

from oproj_pass.capture import StepBound, plan_capture

BOUNDS = st.builds(
    lambda seqs, extra, drafts: StepBound(seqs, seqs + extra, drafts),
    st.integers(1, 700),
    st.integers(0, 2000),
    st.integers(0, 8),
)
CEILINGS = st.none() | st.integers(9, 3000)
PLATFORMS = st.sampled_from(["npu", "cuda"])


@given(BOUNDS, CEILINGS, PLATFORMS)
def test_a_covering_plan_has_a_size_for_every_step(bound, max_size, platform):
    plan = plan_capture(bound, max_size=max_size, platform=platform)
    largest = bound.max_decode_tokens
    dispatched = [plan.dispatch(tokens) for tokens in range(1, largest + 1)]
    assert plan.covers == (None not in dispatched)
    assert plan.covers == (plan.warning is None)
    assert plan.dispatch(largest + 1) is None


@given(BOUNDS, CEILINGS, PLATFORMS)
def test_every_size_is_a_step_a_decode_batch_can_have(bound, max_size, platform):
    plan = plan_capture(bound, max_size=max_size, platform=platform)
    assert set(plan.sizes) <= set(bound.reachable_steps())
    assert max_size is None or plan.max_size <= max_size


@given(BOUNDS, st.integers(9, 3000))
def test_an_explicit_ceiling_is_reached_by_the_last_step_under_it(bound, max_size):
    plan = plan_capture(bound, max_size=max_size)
    assert plan.max_size == max(step for step in bound.reachable_steps() if step <= max_size)


@given(BOUNDS)
def test_the_default_plan_covers_unless_512_is_too_low(bound):
    assert plan_capture(bound).covers == (bound.max_decode_tokens <= 512)


@given(BOUNDS, st.lists(st.integers(1, 3000), min_size=1, max_size=8))
def test_every_step_up_to_a_users_largest_size_is_captured(bound, sizes):
    plan = plan_capture(bound, sizes=sizes)
    asked = min(max(sizes), bound.max_decode_tokens)
    assert all(plan.dispatch(tokens) is not None for tokens in range(1, asked + 1))


@given(BOUNDS, CEILINGS, st.integers(0, 4000))
def test_dispatch_is_the_smallest_size_that_fits(bound, max_size, tokens):
    plan = plan_capture(bound, max_size=max_size)
    fitting = [size for size in plan.sizes if size >= tokens]
    assert plan.dispatch(tokens) == min(fitting, default=None)
