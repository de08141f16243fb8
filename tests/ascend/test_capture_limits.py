"""Where npugraph_ex would capture again or run eager for good, without an error, the runner refuses."""

import pytest
import torch

from tests.ascend.support import serving

SIZES, LIMIT = [2, 4, 8], 4


def refuse():
    serving.fake_world()
    return {
        "over_the_limit": over_the_limit(),
        "moved": moved(),
        "used_up": used_up(),
        "cache": replaced_cache(),
    }


def over_the_limit():
    runner = serving.runner_of(serving.sharded(serving.decoder(), dynamic=True, capture_limit=2), SIZES)
    return serving.refusal(lambda: runner.capture({"x": serving.rows(1)}))


def moved():
    """A weight at another address: npugraph_ex by itself, then the runner."""
    model = serving.decoder()
    step = serving.sharded(model, dynamic=True)
    runner = serving.runner_of(step, SIZES[:1])
    runner.capture({"x": serving.rows(1)})
    weight = model.layers[0].q_proj.weight
    weight.data = weight.data.clone()
    batch = {"x": serving.rows(2)}
    refused = serving.refusal(lambda: runner.step(batch))
    return refused, serving.events_of(lambda: call(step, 2, SIZES[0]))


def used_up():
    """Other sizes, called past the runner, until npugraph_ex gives up."""
    step = serving.sharded(serving.decoder(), dynamic=True, capture_limit=LIMIT)
    runner = serving.runner_of(step, SIZES)
    runner.capture({"x": serving.rows(1)})
    batch, facts = {"x": serving.rows(4)}, {}
    call(step, 5)
    facts["at_the_limit"] = serving.events_of(lambda: runner.step(batch))
    before = len(serving.events())
    call(step, 6)
    facts["destroys"] = sum(line.startswith("destroy model") for line in serving.events()[before:])
    facts["runs_eager"] = serving.events_of(lambda: call(step, 4))
    facts["refused"] = serving.refusal(lambda: runner.step(batch))
    facts["refused_idle"] = serving.refusal(lambda: runner.idle_step({}))
    facts["refused_does"] = serving.events_of(lambda: serving.refusal(lambda: runner.step(batch)))
    return facts


def replaced_cache():
    """A cache that no module holds is not watched; its graph is captured again in the step."""
    model, caches = serving.decoder(), [torch.zeros(2, serving.HIDDEN).npu()]

    def forward(x, cache):
        cache.add_(1)
        return model(x) + cache

    step = serving.sharded(forward, dynamic=False)
    runner = serving.runner_of(lambda x: step(x, caches[0]), SIZES[:1])
    runner.capture({"x": serving.rows(1)})
    replays = serving.events_of(lambda: runner.step({"x": serving.rows(2)}))
    caches[0] = torch.zeros(2, serving.HIDDEN).npu()
    return replays, serving.refusal(lambda: runner.step({"x": serving.rows(2)}))


def call(step, num_tokens, size=SIZES[-1]):
    """Call the compiled model past its runner."""
    x = serving.part_of_buffer(num_tokens, size)
    with torch.inference_mode():
        step(x)


@pytest.fixture(scope="module")
def facts(npu_process):
    return npu_process(refuse).value


def words(events):
    return [line.partition(" ")[0] for line in events]


def test_refuses_a_plan_above_the_capture_limit(facts):
    kind, message = facts["over_the_limit"]
    assert kind == "ConfigError"
    assert "captures 3 sizes" in message
    assert "capture_limit = 2" in message


def test_refuses_a_weight_that_moved_where_npugraph_ex_captures_again(facts):
    (kind, message), unguarded = facts["moved"]
    assert kind == "EagerStepError"
    assert "layers.0.q_proj.weight moved to another address" in message
    assert words(unguarded) == ["capture", "capture", "replay"]  # begin, end


def test_serves_while_the_limit_is_only_reached(facts):
    assert words(facts["used_up"]["at_the_limit"]) == ["replay"]


def test_npugraph_ex_alone_goes_eager_for_good_without_an_error(facts):
    assert facts["used_up"]["destroys"] == LIMIT
    assert facts["used_up"]["runs_eager"] == []


@pytest.mark.parametrize("step", ["refused", "refused_idle"])
def test_refuses_every_step_after_that_before_it_runs(facts, step):
    kind, message = facts["used_up"][step]
    assert kind == "EagerStepError"
    assert f"npugraph_ex reached capture_limit = {LIMIT}" in message
    assert "raise inner_options" in message
    assert facts["used_up"]["refused_does"] == []


def test_refuses_a_step_that_captured_again(facts):
    replays, (kind, message) = facts["cache"]
    assert words(replays) == ["replay"]
    assert kind == "EagerStepError"
    assert "npugraph_ex captured" in message
