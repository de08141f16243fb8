import json
import pickle

import pytest

from oproj_pass.capture import CapturePlan, StepBound, plan_capture
from oproj_pass.errors import ConfigError

PLANS = {
    "default": plan_capture(StepBound(100, 8192)),
    "short": plan_capture(StepBound(600, 8192), platform="cuda"),
    "budgeted": plan_capture(StepBound(100, 8192, 3), budget=5),
    "observed": plan_capture(StepBound(100, 8192), histogram={3: 10, 97: 0.5}),
    "depths": plan_capture(StepBound(100, 8192, 3, (0, 3)), budget=5),
}


@pytest.fixture(params=PLANS)
def plan(request):
    return PLANS[request.param]


@pytest.mark.parametrize(("tokens", "size"), [(0, 4), (1, 4), (4, 4), (5, 8), (8, 8), (9, None)])
def test_dispatches_to_the_smallest_size_that_fits(tokens, size):
    plan = plan_capture(StepBound(8, 64), sizes=[4, 8])
    assert plan.dispatch(tokens) == size


@pytest.mark.parametrize("tokens", [-1, 1.5, True])
def test_refuses_to_dispatch_what_is_not_a_token_count(tokens):
    with pytest.raises(ConfigError, match=f"num_tokens={tokens}"):
        PLANS["default"].dispatch(tokens)


def test_survives_json_and_pickle_unchanged(plan):
    assert CapturePlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    copy = pickle.loads(pickle.dumps(plan))
    assert copy == plan
    assert hash(copy) == hash(plan)


def test_explains_every_size_and_the_widest_gap(plan):
    lines = plan.explain()
    per_size = [line.split(maxsplit=1) for line in lines[-len(plan.sizes) :]]
    assert per_size == [[str(size), why] for size, why in zip(plan.sizes, plan.reasons, strict=True)]
    text = "\n".join(lines)
    low, high = plan.widest_gap
    assert f"steps of {low + 1} to {high} tokens" in text
    assert (plan.warning is None) == ("every possible decode step has a captured size" in text)


def test_explain_compares_with_the_engine_and_with_even_sampling():
    budgeted = "\n".join(PLANS["budgeted"].explain())
    assert "vllm-ascend's own sizes" in budgeted
    assert "even sampling" in budgeted
    observed = "\n".join(PLANS["observed"].explain())
    assert "expected padding" in observed
    assert "even sampling" not in observed
    assert "expected padding" not in "\n".join(PLANS["default"].explain())


def test_explains_rounding_and_the_exact_step():
    plan = plan_capture(StepBound(6, 64, 6))
    why = dict(zip(plan.sizes, plan.reasons, strict=True))
    assert "rounded up to whole requests of 7" in why[14]
    assert why[42] == "exactly the largest possible decode step"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"covers": False}, "covers=False contradicts the sizes"),
        ({"sizes": [1, 2, 200]}, "200 can never be dispatched"),
        ({"sizes": [2, 1]}, "must ascend without repeats"),
        ({"sizes": []}, "captures nothing"),
        ({"sizes": [1, 100]}, "reasons: 16 given for 2 sizes"),
        ({"bound": {"max_num_seqs": 100}}, "wrong form"),
        ({"platform": "tpu"}, "platform='tpu'"),
        ({"colour": 1}, "unknown field 'colour'"),
    ],
)
def test_refuses_an_edited_plan(change, message):
    data = {**PLANS["default"].to_dict(), **change}
    with pytest.raises(ConfigError, match=message):
        CapturePlan.from_dict(data)


def test_refuses_a_plan_with_a_field_missing():
    data = PLANS["default"].to_dict()
    del data["bound"]
    with pytest.raises(ConfigError, match="field 'bound' is missing"):
        CapturePlan.from_dict(data)
