"""A rank that fails inside a step of unequal roles: every other one raises within three timeouts."""

import os
from functools import partial

import pytest
import torch
import torch.distributed as dist

from oproj_pass.capture import StepBound, plan_capture
from oproj_pass.flight.compare import first_difference, read_record
from oproj_pass.flight.record import FOLDER_VARIABLE
from oproj_pass.passes.graph.collectives import collective_of
from oproj_pass.runtime import DecodeRunner
from tests.distributed.runtime.ranks import caught
from tests.support.family import ids, language_model

pytestmark = pytest.mark.distributed

SIZES = {"mlp_tensor_parallel_size": 2, "lmhead_tensor_parallel_size": 4}
ONE_SIZE = plan_capture(StepBound(4, 64), sizes=[4])
TIMEOUT = 3.0


def strike():
    """Fail on rank 1, once serving."""
    if strike.is_serving and dist.get_rank() == 1:
        raise RuntimeError("device assert")


def failing_before(collective, gm, _):
    """An inner backend whose graph fails right before its n-th collective, -1 being the last."""
    nodes = [node for node in gm.graph.nodes if collective_of(node) is not None]
    with gm.graph.inserting_before(nodes[collective]):
        gm.graph.call_function(strike)
    gm.recompile()
    return gm


@torch.inference_mode()
def failing_step(collective, folder):
    """The error of a step in which rank 1 fails, and of the next one; flight records go to ``folder``."""
    strike.is_serving = False
    options = {"oproj_tensor_parallel_size": 0, **SIZES}
    options["inner_backend"] = partial(failing_before, collective)
    step = torch.compile(language_model(), backend="oproj_npu", options=options, fullgraph=True)
    runner = DecodeRunner(step, ONE_SIZE, rows={"ids": 0}, timeout=TIMEOUT)
    runner.capture({"ids": ids(1, 1)})
    runner.step({"ids": ids(3, 1)})
    strike.is_serving = True
    os.environ[FOLDER_VARIABLE] = str(folder)  # after the runner, which would handle this process's signals
    try:
        return [caught(lambda: runner.step({"ids": ids(3, 1)})) for _ in range(2)]
    finally:
        del os.environ[FOLDER_VARIABLE]


@pytest.mark.parametrize(
    ("collective", "found"),
    [(0, "collective 1 of 4, all_gather_into_tensor"), (-1, "collective 4 of 4, all_to_all_single")],
    ids=["before its pair exchanges", "before all exchange"],
)
def test_every_other_rank_raises_in_time_and_the_records_name_the_collective(
    four_ranks, tmp_path, collective, found
):
    for (kind, message, seconds), (again, _, at_once) in four_ranks.run(failing_step, collective, tmp_path):
        assert kind == again == "GroupMismatchError"
        assert "device assert" in message
        assert seconds < 3 * TIMEOUT + 5  # a loaded machine
        assert at_once < 1
    difference = first_difference([read_record(path) for path in tmp_path.glob("*.json")])
    assert difference.collective.startswith(found)
