"""Ranges in a profiler's trace, around what a step is made of."""

import json
import logging

import torch
from torch._logging._internal import trace_log
from torch.profiler import ProfilerActivity, profile

from oproj_pass.profiling import profiled
from tests.support.fake import fake_world
from tests.support.models import decoder, rows


@profiled("oproj_pass::some")
def some(x, *, factor):
    """Doubles."""
    return x * factor


def ranges(call):
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        call()
    return {event.name for event in trace.events() if event.name.startswith("oproj_pass::")}


def test_a_call_is_a_range_of_its_name():
    assert ranges(lambda: some(torch.ones(1), factor=2)) == {"oproj_pass::some"}
    assert some(3, factor=2) == 6
    assert some.__doc__ == "Doubles."


def test_a_step_of_a_runner_has_its_parts(serving, batch, peer):
    runner = serving(group=peer)
    assert ranges(lambda: runner.step({"x": batch(3)})) == {
        "oproj_pass::agree", "oproj_pass::copy_inputs", "oproj_pass::replay",
    }  # fmt: skip


def test_a_graph_leaves_its_decision_in_the_structured_trace():
    found = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(
        (getattr(record, "metadata", {}), getattr(record, "payload", ""))
    )
    trace_log.addHandler(handler)
    try:
        with fake_world(2), torch.inference_mode():
            torch.compile(decoder(), backend="oproj_npu", options={"exclude": "layers.1.*"})(rows(3, 32))
    finally:
        trace_log.removeHandler(handler)
    (payload,) = [text for data, text in found if data.get("artifact", {}).get("name") == "oproj_sharding"]
    artifact = json.loads(payload)
    assert [(site["path"], site["ranks"]) for site in artifact["sites"]] == [("layers.0.attn.o_proj", 2)]
    assert [miss["path"] for miss in artifact["near_misses"]] == ["layers.1.attn.o_proj"]
