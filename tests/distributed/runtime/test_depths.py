"""Speculation whose depth changes between steps and between ranks: one set of graphs serves them all."""

import pytest
import torch
import torch.distributed as dist

from oproj_pass.capture import GraphMode, StepBound, plan_capture
from tests.distributed.runtime.ranks import Exchanging, caught, serving

pytestmark = pytest.mark.distributed
REQUESTS = 4
PLAN = plan_capture(StepBound(REQUESTS, 64, 3, (0, 1, 2, 3)))
WITHOUT_DRAFTS = plan_capture(StepBound(REQUESTS, 64))
# (requests, depth) by rank; no requests: the rank is idle.
STEPS = [
    ((1, 0), (4, 3)), ((4, 3), (1, 0)), ((3, 1), (2, 2)), ((0, 0), (1, 0)),
    ((2, 3), (0, 0)), ((1, 2), (1, 1)), ((4, 0), (4, 0)), ((4, 1), (3, 3)),
]  # fmt: skip


def model():
    """The doubled rows, after an exchange that needs equal counts, and the sum over each row's request."""
    exchanging = Exchanging()

    def forward(x, ends):
        request = torch.searchsorted(ends, torch.arange(len(x)), right=True)
        sums = torch.zeros(REQUESTS + 1, x.shape[1]).index_add(0, request, x)
        return exchanging(x) + sums[request]

    return forward


def batch(requests, depth):
    """Rows of so many requests of one depth, where each request ends, and what the model makes of them."""
    x = torch.randn(requests, 1 + depth, 3)
    ends = torch.full((REQUESTS,), requests * (1 + depth))
    ends[:requests] = torch.arange(1, requests + 1) * (1 + depth)
    return {"x": x.flatten(0, 1), "ends": ends}, (2 * x + x.sum(1, keepdim=True)).flatten(0, 1)


def runner_of(plan):
    example, _ = batch(1, 0)
    return serving(model(), plan=plan, rows={"x": 0, "ends": None}, example=example)


def errors_and_modes(steps, mistaken_depth=None):
    """Per step this rank's error, and the mode and tokens that the group agreed on."""
    runner, found = runner_of(PLAN), []
    for by_rank in steps:
        requests, depth = by_rank[dist.get_rank()]
        inputs, expected = batch(requests, depth)
        if mistaken_depth is not None:
            inputs["ends"] = batch(requests, mistaken_depth)[0]["ends"]
        if requests:
            error = (runner.step(inputs) - expected).abs().max().item()
        else:
            error = runner.idle_step({"ends": inputs["ends"]}) or 0.0
        agreed = runner.last_step.agreement
        found.append((error, agreed.mode, agreed.num_tokens))
    return found


def test_every_step_of_every_depth_replays_a_graph_and_is_right(two_ranks):
    for found in two_ranks.run(errors_and_modes, STEPS):
        for (error, mode, num_tokens), by_rank in zip(found, STEPS, strict=True):
            brought = [requests * (1 + depth) if requests else 1 for requests, depth in by_rank]
            assert (mode, num_tokens) == (GraphMode.FULL, max(brought))
            assert error < 1e-5


def test_a_step_that_is_told_another_depth_is_wrong(two_ranks):
    for found in two_ranks.run(errors_and_modes, [((3, 1), (2, 2))], 0):
        assert found[0][0] > 1e-2


def a_deep_step(plan):
    runner = runner_of(plan)
    return caught(lambda: runner.step(batch(REQUESTS, 3)[0]))[:2]


def test_a_plan_for_one_depth_refuses_the_steps_of_a_deeper_one_on_every_rank(two_ranks):
    for kind, message in two_ranks.run(a_deep_step, WITHOUT_DRAFTS):
        assert kind == "EagerStepError"
        assert "brings 16 tokens, the largest captured size is 4" in message
