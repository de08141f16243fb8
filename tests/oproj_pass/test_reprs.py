"""Reports, records and plans: a short line at a prompt, a table in a notebook. No name is markup."""

import pytest
import torch

import oproj_pass
from oproj_pass.capture import StepBound, plan_capture
from oproj_pass.deployment import Deployment, check_deployment
from oproj_pass.passes import NearMiss, PassRecord
from oproj_pass.weights.memory_report import ShardedWeight, ShardReport
from tests.support.models import decoder

EVIL = "<img src=x onerror=alert(1)>"
SHOWN = {
    "explain": lambda: oproj_pass.explain(decoder(layers=3), torch.randn(3, 32)),
    "check": lambda: check_deployment(Deployment(data_parallel_size=8)),
    "plan": lambda: plan_capture(StepBound(256, 8192, 1)),
    "short plan": lambda: plan_capture(StepBound(24, 8192), max_size=16),
    "record": lambda: PassRecord("mine", near_misses=(NearMiss(EVIL, "has <no> weight"),)),
    "weights": lambda: ShardReport((ShardedWeight(EVIL, 4 << 20, 1 << 20, 0),)),
}
LINES = {
    "check": "DeploymentReport(may start: 0 error(s), 0 warning(s); oproj_tensor_parallel_size=0, "
    "cudagraph_mode=FULL_AND_PIECEWISE)",
    "short plan": "CapturePlan(npu: 5 sizes up to 16, no graph above 16)",
    "record": "PassRecord(mine: 0 matches, 1 near miss, 0 nodes changed)",
    "weights": "ShardReport(1 sharded weights, 3.00 MiB freed)",
}


@pytest.mark.parametrize("kind", SHOWN)
def test_is_one_short_line_and_a_table(kind):
    shown = SHOWN[kind]()
    line = repr(shown)
    assert len(line) < 140
    assert "\n" not in line
    assert line == LINES.get(kind, line)
    html = shown._repr_html_()
    assert "<p>" in html
    assert "<img" not in html


def test_says_not_to_shard_where_the_buffers_take_more():
    assert "Do not shard over N = 2, 4, 8: the buffers" in SHOWN["explain"]()._repr_html_()
