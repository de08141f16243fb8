"""The runner around a model that the backend shards, next to the unsharded one."""

import gc
import os
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from oproj_pass.capture import StepBound, plan_capture
from oproj_pass.runtime import ControlGroup, DecodeRunner
from oproj_pass.runtime.buffers import PersistentInputs, RowBuffer
from tests.distributed.runtime.ranks import PATIENCE, TIMEOUT, caught
from tests.support.models import decoder, rows

pytestmark = pytest.mark.distributed
PLAN = plan_capture(StepBound(12, 64))
TINY = plan_capture(StepBound(4, 64), sizes=[2, 4])
SHALLOW = {"layers": 1}


class PerRow(torch.nn.Module):
    """A decoder over [rows, 1, H]: rows are requests, which do not see each other."""

    def __init__(self, **options):
        super().__init__()
        self.decoder = decoder(**options)

    def forward(self, x):
        return self.decoder(x)


def sharded_runner(plan=PLAN, model_options=None, dynamic=False, **options):
    model = PerRow(**(model_options or {}))
    options = {"oproj_tensor_parallel_size": dist.get_world_size(), "timeout": 30, **options}
    compiled = torch.compile(model, backend="oproj_npu", options=options, dynamic=dynamic)
    runner = DecodeRunner(compiled, plan, rows={"x": 0}, timeout=TIMEOUT, capture_timeout=30)
    runner.capture({"x": torch.zeros(1, 1, 32)})
    return runner, model


def error_of_steps(counts, sabotage):
    dynamic = None if sabotage == "none" else False
    runner, _ = sharded_runner(model_options=SHALLOW, dynamic=dynamic)
    reference = PerRow(**SHALLOW)
    errors = []
    with SABOTAGES[sabotage]():
        for by_rank in counts:
            x = rows(by_rank[dist.get_rank()], 1, 32)
            result = runner.step({"x": x})
            assert result.shape == x.shape
            errors.append((result - reference(x)).abs().max().item())
    return max(errors), runner.armed


SABOTAGES = {
    "none": nullcontext,
    "stale inputs": lambda: patch.object(PersistentInputs, "load", lambda *_: None),
    "rows at the end": lambda: patch.object(
        RowBuffer,
        "parts",
        lambda buffer, rows, size: buffer.views[size].split_with_sizes([size - rows, rows], buffer.dim)[::-1],
    ),
}
COUNTS = [(3, 12), (12, 3), (1, 1), (7, 2), (5, 9)]


def test_equals_the_unsharded_model_at_every_size(two_ranks):
    for error, armed in two_ranks.run(error_of_steps, COUNTS, "none"):
        assert error < 1e-5
        assert armed


@pytest.mark.parametrize("sabotage", ["stale inputs", "rows at the end"])
def test_sabotaged_inputs_show_in_the_comparison(two_ranks, sabotage):
    for error, _ in two_ranks.run(error_of_steps, COUNTS, sabotage):
        assert error > 1e-3


def different_graphs():
    options = {"exclude": "*layers.1*"} if dist.get_rank() == 1 else {}
    return caught(lambda: sharded_runner(TINY, **options))


def test_a_rank_with_another_graph_is_refused_at_capture_on_every_rank(ranks):
    for kind, message, seconds in ranks.run(different_graphs):
        assert "GroupMismatchError" in kind
        assert "rank 1" in message
        assert seconds < 10 * PATIENCE  # compiles


def change_weights(how):
    runner, model = sharded_runner(TINY, SHALLOW)
    source = PerRow(**SHALLOW)
    projection = model.decoder.layers[0].attn.o_proj
    twice = 2 * source.decoder.layers[0].attn.o_proj.weight
    with torch.no_grad():
        source.decoder.layers[0].attn.o_proj.weight.copy_(twice)
    if how == "data":
        projection.weight.data = twice
    elif how == "new parameter":
        projection.weight = torch.nn.Parameter(twice, requires_grad=False)
    elif how == "refilled storage":
        projection.weight.untyped_storage().resize_(twice.nbytes)
    elif how == "dtype":
        model.decoder.layers[0].up.to(torch.float64)
    elif how == "load_state_dict":
        projection.load_state_dict({"weight": twice, "bias": projection.bias})
    x = rows(2, 1, 32)
    outcome = caught(lambda: runner.step({"x": x}))
    if outcome[0] != "none":
        return outcome[:2]
    return "none", (runner.step({"x": x}) - source(x)).abs().max().item()


@pytest.mark.parametrize("how", ["data", "load_state_dict"])
def test_weights_written_in_place_are_served(two_ranks, how):
    for kind, error in two_ranks.run(change_weights, how):
        assert kind == "none"
        assert error < 1e-5


@pytest.mark.parametrize(
    ("how", "weight"),
    [
        ("new parameter", "layers.0.attn.o_proj.weight"),
        ("refilled storage", "layers.0.attn.o_proj.weight"),
        ("dtype", "layers.0.up.weight"),
    ],
)
def test_weights_that_moved_are_refused(two_ranks, how, weight):
    for kind, message in two_ranks.run(change_weights, how):
        assert kind == "EagerStepError"
        assert f"{weight} moved" in message


def soak(num_steps):
    """Worst error, and (live tensors, resident KiB) as steps go by, under random loads with idle ranks."""
    runner, _ = sharded_runner(TINY, SHALLOW)
    reference = PerRow(**SHALLOW)
    loads = torch.randint(
        0, 5, (num_steps, dist.get_world_size()), generator=torch.Generator().manual_seed(0)
    )
    worst, memory = 0.0, []
    for step, by_rank in enumerate(loads.tolist(), start=1):
        num_tokens = by_rank[dist.get_rank()]
        if num_tokens:
            x = rows(num_tokens, 1, 32)
            worst = max(worst, (runner.step({"x": x}) - reference(x)).abs().max().item())
        else:
            runner.idle_step({})
        if step % 1000 == 0:
            memory.append((live_tensors(), resident_kib()))
    return worst, memory, runner.num_agreements


def live_tensors():
    gc.collect()
    return sum(issubclass(type(value), torch.Tensor) for value in gc.get_objects())


def resident_kib():
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def test_thousands_of_random_steps_stay_right_and_flat(two_ranks):
    steps = int(os.environ.get("SOAK_STEPS", "3000"))  # 20000 before a release
    outcomes = two_ranks.run(soak, steps, timeout=steps / 20)
    for worst, memory, _ in outcomes:
        (tensors_early, resident_early), (tensors_late, resident_late) = memory[0], memory[-1]
        assert worst < 1e-5
        assert tensors_late <= tensors_early
        assert resident_late - resident_early < 10 * 1024
    assert outcomes[0][2] == outcomes[1][2]


def exchanges_of_steps(count):
    runner, _ = sharded_runner(TINY, SHALLOW)
    exchanges, exchange = [], ControlGroup.exchange
    with patch.object(ControlGroup, "exchange", lambda *args: exchanges.append(1) or exchange(*args)):
        for _ in range(count):
            runner.step({"x": rows(1 + dist.get_rank(), 1, 32)})
    return len(exchanges)


def test_a_step_agrees_once_and_its_graphs_do_not_compare_rows_again(two_ranks):
    assert two_ranks.run(exchanges_of_steps, 3) == [3, 3]
