import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oproj_pass.capture import StepBound, StreamShape, plan_capture
from oproj_pass.capture.optimal import evenly_sampled, optimal_sizes
from oproj_pass.capture.padding import expected_padding
from oproj_pass.errors import ConfigError

WEIGHTS = st.sampled_from([0, 1, 3, 50, 0.1, 1e-9])


def cost(sizes, histogram):
    return expected_padding(sizes, histogram).tokens


def kept_by_a_plan(candidates, length):
    """All choices of `length` candidates that keep the largest and, from 2, the smallest."""
    for chosen in itertools.combinations(candidates, length):
        if chosen[-1] == candidates[-1] and (length == 1 or chosen[0] == candidates[0]):
            yield chosen


@given(
    st.lists(st.integers(1, 24), min_size=1, max_size=9, unique=True).map(sorted),
    st.dictionaries(st.integers(1, 26), WEIGHTS, min_size=1, max_size=12),
    st.integers(1, 10),
)
def test_no_other_plan_of_the_same_length_pads_less(candidates, weights, budget):
    histogram = {**weights, candidates[-1]: 1}
    chosen = optimal_sizes(candidates, histogram, budget)
    assert len(chosen) <= budget
    assert chosen in kept_by_a_plan(candidates, len(chosen))
    longest = min(budget, len(candidates))
    best = min(cost(other, histogram) for other in kept_by_a_plan(candidates, longest))
    assert cost(chosen, histogram) == pytest.approx(best, abs=1e-12)


@given(st.integers(1, 40), st.integers(40, 160), st.integers(0, 3), st.integers(1, 8), st.integers(1, 99))
def test_a_budgeted_plan_never_pads_more_than_even_sampling(seqs, tokens, drafts, budget, factor):
    bound = StepBound(seqs, tokens, drafts)
    histogram = {step: (step * factor) % 7 + 1 for step in bound.reachable_steps()}
    plan = plan_capture(bound, budget=budget, histogram=histogram)
    assert plan.covers
    assert len(plan.sizes) <= budget
    assert set(plan.sizes) <= set(bound.reachable_steps())
    assert plan.padding.plan.tokens <= plan.padding.even.tokens + 1e-9


def test_a_skewed_histogram_moves_the_sizes():
    bound = StepBound(100, 8192)
    uniform = plan_capture(bound, budget=4)
    skewed = plan_capture(
        bound, budget=4, histogram={step: 1000 if step < 10 else 1 for step in range(1, 101)}
    )
    assert uniform.sizes[-1] == skewed.sizes[-1] == 100
    assert skewed.sizes[1] < uniform.sizes[1]
    assert skewed.padding.plan.tokens < skewed.padding.even.tokens


def test_steps_that_all_run_eager_leave_the_ends_of_the_grid():
    plan = plan_capture(StepBound(600, 8192), budget=6, histogram={600: 1})
    assert plan.sizes == (1, 512)
    assert plan.padding.plan.eager_percent == 100


def test_captures_no_size_that_saves_nothing():
    plan = plan_capture(StepBound(100, 8192), budget=10, histogram={1: 5, 40: 2, 100: 1})
    assert plan.sizes == (1, 40, 100)
    assert plan.padding.plan.tokens == 0


def test_a_budget_of_one_keeps_the_largest_step_only():
    assert plan_capture(StepBound(100, 8192), budget=1).sizes == (100,)


def test_a_budget_chooses_among_a_users_own_sizes():
    plan = plan_capture(StepBound(100, 8192), sizes=[1, 10, 50, 100], budget=3)
    assert plan.sizes == (1, 50, 100)


def test_a_budget_does_not_lift_the_ceiling():
    plan = plan_capture(StepBound(600, 8192), budget=6)
    assert plan.max_size == 512
    assert not plan.covers
    assert plan.padding.plan.eager_percent == pytest.approx(100 * 88 / 600)


def test_without_a_histogram_every_reachable_step_counts_once():
    bound = StepBound(10, 64, 1)
    steps = dict.fromkeys(bound.reachable_steps(), 1)
    assert plan_capture(bound, budget=3) == plan_capture(bound, budget=3, histogram=steps)


def test_few_graphs_keep_both_ends_and_report_the_gap():
    # vllm-ascend#1168 and #9564: about 1920 / (layers * groups) graphs, and a gap from 1 to 88.
    shape = StreamShape(
        94, tensor_parallel_size=2, is_moe=True, enable_expert_parallel=True, aiv_expansion=True
    )
    bound = StepBound(512, 8192)
    budget = shape.max_graphs(len(plan_capture(bound).sizes))
    plan = plan_capture(bound, budget=budget)
    assert budget == 6
    assert len(plan.sizes) <= 6
    assert (plan.sizes[0], plan.sizes[-1]) == (1, 512)
    low, high = plan.widest_gap
    assert f"widest gap: steps of {low + 1} to {high} tokens" in "\n".join(plan.explain())


@pytest.mark.parametrize(
    ("budget", "sampled"),
    [(1, (9,)), (2, (1, 9)), (3, (1, 5, 9)), (9, tuple(range(1, 10))), (50, tuple(range(1, 10)))],
)
def test_even_sampling_keeps_both_ends(budget, sampled):
    assert evenly_sampled(range(1, 10), budget) == sampled


@pytest.mark.parametrize(
    ("sizes", "tokens", "percent", "eager"),
    [((4, 8), 1.5, 100 * 6 / 24, 0), ((4,), 1.5, 100 * 3 / 8, 50), ((), 0, 0, 100)],
)
def test_expected_padding_counts_rows_and_eager_steps(sizes, tokens, percent, eager):
    padding = expected_padding(sizes, {1: 1, 4: 1, 5: 1, 8: 1})
    assert (padding.tokens, padding.percent, padding.eager_percent) == pytest.approx((tokens, percent, eager))


def test_compares_with_the_engine_of_the_platform():
    npu = plan_capture(StepBound(12, 8192), budget=4, platform="npu").padding
    cuda = plan_capture(StepBound(12, 8192), budget=4, platform="cuda").padding
    assert npu.default.eager_percent == pytest.approx(100 * 4 / 12)
    assert cuda.default.eager_percent == 0
    assert npu.plan == cuda.plan


@pytest.mark.parametrize(
    ("histogram", "message"),
    [
        ({"8": 1}, "step '8' must be a positive integer"),
        ({0: 1}, "step 0 must be a positive integer"),
        ({8: -1}, "weight of step 8 must be finite and >= 0, got -1"),
        ({8: float("nan")}, "weight of step 8 must be finite"),
        ({8: "often"}, "weight of step 8 must be a number, got 'often'"),
        ({101: 5}, "no step of 1 to 100 tokens"),
        ({8: 0}, "no step of 1 to 100 tokens"),
    ],
)
def test_refuses_a_histogram_it_cannot_weigh(histogram, message):
    with pytest.raises(ConfigError, match=message):
        plan_capture(StepBound(100, 8192), histogram=histogram)


def test_ignores_prefill_steps_in_an_observed_histogram():
    bound = StepBound(100, 8192)
    decode = plan_capture(bound, budget=3, histogram={5: 2, 100: 1})
    assert plan_capture(bound, budget=3, histogram={5: 2, 100: 1, 8192: 40}) == decode
