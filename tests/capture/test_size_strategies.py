"""What a plan may name for single sizes, and that nothing of it is lost on the way to a backend."""

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oproj_pass.capture import CapturePlan, SizeStrategy, StepBound, plan_capture
from oproj_pass.errors import ConfigError

SIZES = (4, 64, 512)
BOUND = StepBound(512, 8192)
NAMED = {4: {"reduce": "scatter"}, 64: {"reduce": "exchange"}, 512: {"reduce": "exchange", "chunks": 4}}

WAYS = st.fixed_dictionaries(
    {},
    optional={
        "reduce": st.sampled_from(["scatter", "exchange", "auto"]),
        "chunks": st.integers(1, 8) | st.just("auto"),
    },
)
PLACEMENTS = st.sampled_from(
    [{}, {"strategy": "row"}, {"strategy": "column"}, {"strategy": "grid", "grid": (4, 2)}]
)


def planned(strategies):
    return plan_capture(BOUND, sizes=SIZES, strategies=strategies)


@st.composite
def plans(draw):
    """A plan of which some sizes name a way, and all that do the same placement or none."""
    bound = StepBound(draw(st.integers(1, 100)), 8192, draw(st.integers(0, 3)))
    plan = plan_capture(bound, budget=draw(st.none() | st.integers(1, 6)))
    sizes = draw(st.sets(st.sampled_from(plan.sizes)))
    placement = draw(PLACEMENTS)
    return plan, {size: {**draw(WAYS), **draw(st.sampled_from([placement, {}]))} for size in sizes}


@given(plans())
def test_every_size_has_what_is_named_for_it_and_the_sizes_stay(case):
    plan, named = case
    found = plan.with_strategies(named)
    assert (found.sizes, found.reasons, found.covers) == (plan.sizes, plan.reasons, plan.covers)
    assert {size: found.strategy_of(size) for size in found.sizes} == {
        size: SizeStrategy.of(named.get(size, {})) for size in plan.sizes
    }


@given(plans())
def test_survives_json_and_pickle_with_its_strategies(case):
    plan, named = case
    found = plan.with_strategies(named)
    assert CapturePlan.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert hash(pickle.loads(pickle.dumps(found))) == hash(found)


@given(plans(), st.data())
def test_ranks_have_one_fingerprint_if_and_only_if_they_name_the_same(case, data):
    plan, named = case
    others = {size: data.draw(st.sampled_from([way, {"reduce": "auto"}])) for size, way in named.items()}
    first, second = plan.with_strategies(named), plan.with_strategies(others)
    assert (first.fingerprint == second.fingerprint) == (first == second)
    assert (first.fingerprint == "") == (first.strategies == ())


@given(plans(), st.data())
def test_no_plan_has_two_placements(case, data):
    plan, named = case
    placements = [named.get(size, {}).get("strategy") for size in plan.sizes]
    other = data.draw(st.sampled_from(plan.sizes))
    named[other] = {"strategy": "vocabulary"}
    if {*placements} - {None} and any(named[size].get("strategy") for size in {*named} - {other}):
        with pytest.raises(ConfigError, match="one weight has one placement"):
            plan.with_strategies(named)
    else:
        assert plan.with_strategies(named).strategy_of(other).strategy == "vocabulary"


@pytest.mark.parametrize(
    ("strategies", "message"),
    [
        (
            {4: "row", 64: "row", 512: "column"},
            "strategy = 'row' for sizes 4, 64 and strategy = 'column' for",
        ),
        ({4: {"grid": (4, 2)}, 64: {"grid": (2, 4)}}, r"grid = \(4, 2\) for size 4 and grid = \(2, 4\) for"),
        ({8: "row"}, "size 8 not captured, the plan captures 4, 64, 512"),
        ({"four": "row"}, "size='four' must be an integer"),
        ({4: "row", "4": "row"}, "size 4 is named twice"),
        ({4: {"reduse": "scatter"}}, "size 4: unknown option 'reduse': did you mean 'reduce'"),
        ({4: {"reduce": "sum"}}, "size 4: reduce='sum' must be one of scatter, exchange, auto"),
        ({4: {"chunks": 0}}, "size 4: chunks=0 must be at least 1"),
        ({4: {"grid": (8, 1)}}, "size 4: grid=1 must be at least 2"),
        ({4: {"grid": 8}}, "size 4: grid=8 must be two numbers of ranks"),
        ({4: {"strategy": ["row"]}}, r"size 4: strategy=\['row'\] must be the name"),
        ({4: None}, "size 4: None must be the name of a strategy, or options such as"),
        ([4], "must be a mapping"),
    ],
)
def test_refuses_what_no_plan_can_have(strategies, message):
    with pytest.raises(ConfigError, match=message):
        planned({}).with_strategies(strategies)


def test_a_name_alone_is_a_strategy_and_an_empty_one_is_none():
    plan = planned({4: "row", 64: {"strategy": "row"}, 512: {}})
    assert plan.strategy_of(4) == plan.strategy_of(64) == SizeStrategy(strategy="row")
    assert plan.strategies == ((4, SizeStrategy("row")), (64, SizeStrategy("row")))


def test_shows_what_each_size_names():
    plan = planned(NAMED)
    lines = plan.explain()[-3:]
    assert [line.rpartition("; ")[2] for line in lines] == [
        "reduce = scatter",
        "reduce = exchange",
        "reduce = exchange, chunks = 4",
    ]
    assert repr(plan).endswith("covers every step, a strategy for 3 of them)")
    assert "reduce = exchange, chunks = 4</td>" in plan._repr_html_()


def test_a_saved_plan_without_strategies_is_still_one():
    data = planned({}).to_dict()
    del data["strategies"]
    assert CapturePlan.from_dict(data) == planned({})
