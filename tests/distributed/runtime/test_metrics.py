"""A runner's counts on ranks that exchange: the bytes of its replays and of its wide steps."""

import pytest
import torch
import torch.distributed as dist

from oproj_pass.capture import StepBound, plan_capture
from oproj_pass.metrics import export_metrics
from oproj_pass.runtime import DecodeRunner
from tests.distributed.runtime.ranks import TIMEOUT
from tests.support.models import decoder, rows

pytestmark = pytest.mark.distributed
HIDDEN = 32  # both K and H of the one projection, four bytes a feature
A_ROW = HIDDEN // 2 * 4 + HIDDEN * 4  # half of x to the other rank, and its partial sums
HALF = HIDDEN * HIDDEN * 4 // 2


def counted(options):
    """The counts after a step of size 4, an idle one with it, and a wide one; and what a scrape says."""
    torch._dynamo.reset()
    model = decoder(layers=1)
    options = {"oproj_tensor_parallel_size": 2, "timeout": 30, **options}
    compiled = torch.compile(model, backend="oproj_npu", options=options, dynamic=False)
    runner = DecodeRunner(
        compiled, plan_capture(StepBound(4, 64), sizes=[2, 4]), rows={"x": 0}, timeout=TIMEOUT,
        wide_steps="gather", group=dist.group.WORLD,
    )  # fmt: skip
    runner.capture({"x": torch.zeros(1, HIDDEN)})
    if dist.get_rank():
        runner.idle_step({})
    else:
        runner.step({"x": rows(3, HIDDEN)})
    decode = runner.counts.sent_nbytes
    runner.step({"x": rows(9, HIDDEN)})
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ImportError:
        text = None
    else:
        export_metrics(runner, model=model, registry=(registry := CollectorRegistry()))
        text = generate_latest(registry).decode()
    counts = runner.counts
    return dict(counts.steps), counts.idle_steps, decode, counts.sent_nbytes - decode, text


def test_counts_the_bytes_of_a_replay_and_of_a_wide_step(two_ranks):
    for rank, (steps, idle, decode, wide, text) in enumerate(two_ranks.run(counted, {})):
        assert steps == {"replayed": 1, "eager": 0, "wide": 1}
        assert (idle, decode, wide) == (rank, 4 * A_ROW, HALF)
        if text is not None:
            assert f'oproj_freed_bytes{{role="oproj",runner="model"}} {float(HALF)}' in text
            assert 'oproj_tensor_parallel_size{role="oproj",runner="model"} 2.0' in text


def test_a_model_that_keeps_its_projection_sends_nothing(two_ranks):
    for _, _, decode, wide, text in two_ranks.run(counted, {"oproj_tensor_parallel_size": 0}):
        assert (decode, wide) == (0, 0)
        assert text is None or "oproj_freed_bytes{" not in text
