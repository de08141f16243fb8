"""Sizes of one runner whose graphs are written in different ways: right at each, and alike on every rank."""

from contextlib import nullcontext
from functools import partial
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

import oproj_pass
from oproj_pass.backend import exchanges
from oproj_pass.capture import StepBound, plan_capture
from oproj_pass.passes import Exchange
from oproj_pass.runtime import DecodeRunner
from oproj_pass.weights.placement import Placement
from tests.distributed.runtime.ranks import PATIENCE, TIMEOUT, caught
from tests.distributed.runtime.test_sharded_model import PerRow
from tests.distributed.test_strategies import next_ranks_part
from tests.support.models import rows

pytestmark = pytest.mark.distributed

SIZES = (2, 4, 16)
NAMED = {2: {"reduce": "scatter"}, 4: {"reduce": "exchange"}, 16: {"reduce": "exchange", "chunks": 2}}
SENDS, SCATTERS = "all_to_all_single", "reduce_scatter_tensor"


def planned(strategies):
    return plan_capture(StepBound(16, 64), sizes=SIZES, strategies=strategies)


def captured(plan, *, backend_plan=None):
    """A runner, and its model, of one layer; even these rows are worth a chunk."""
    model = PerRow(layers=1)
    options = {"oproj_tensor_parallel_size": 2, "timeout": 30, "plan": backend_plan or plan}
    compiled = torch.compile(model, backend="oproj_npu", options=options)
    runner = DecodeRunner(compiled, plan, rows={"x": 0}, timeout=TIMEOUT, capture_timeout=30)
    with patch.object(exchanges, "Exchange", partial(Exchange, least_chunk_nbytes=0)):
        runner.capture({"x": torch.zeros(1, 1, 32)})
    return runner, model


def served(wrong_part):
    """By size the error of a step and its collectives, and what the report says."""
    sabotage = patch.object(Placement, "part_of", next_ranks_part) if wrong_part else nullcontext()
    with sabotage:
        runner, model = captured(planned(NAMED))
    reference, found = PerRow(layers=1), {}
    for size in SIZES:
        x = rows(size - dist.get_rank(), 1, 32)
        with torch.profiler.profile() as profile:
            result = runner.step({"x": x})
        names = [event.name.partition("_c10d_functional::")[2] for event in profile.events()]
        error = (result - reference(x)).abs().max().item()
        found[size] = error, [name for name in names if name and name != "wait_tensor"]
    return found, oproj_pass.shard_report(model).weights[0].exchange


def test_every_size_computes_what_the_unsharded_model_does_in_its_own_way(two_ranks):
    for found, report in two_ranks.run(served, False):
        assert all(error < 1e-5 for error, _ in found.values()), found
        assert {size: collectives for size, (_, collectives) in found.items()} == {
            2: [SENDS, SCATTERS],
            4: [SENDS, SENDS],
            16: [SENDS] * 4,
        }
        assert report == "2 rows: row, scatter; 4 rows: row, exchange; 16 rows: row, exchange, 2 chunks"


def test_the_next_ranks_part_shows_at_every_size(two_ranks):
    """The negative control."""
    for found, _ in two_ranks.run(served, True):
        assert all(error > 1e-3 for error, _ in found.values()), found


def captured_apart(other):
    """Rank 1 names another way for one size."""
    return caught(lambda: captured(planned(NAMED | other if dist.get_rank() else NAMED)))


@pytest.mark.parametrize(
    ("other", "theirs"),
    [
        ({2: {"reduce": "exchange"}}, "rank 0 has size 2: reduce = scatter; rank 1 has size 2: reduce = ex"),
        ({4: {}}, "rank 0 has size 4: reduce = exchange; rank 1 has size 4. "),
        (
            {4: {"reduce": "exchange", "chunks": 1}},
            "size 4: reduce = exchange; rank 1 has size 4: reduce = ex",
        ),
    ],
    ids=["another way", "no way", "the same graph"],
)
def test_ranks_that_name_other_ways_are_refused_on_both_at_the_first_graph(two_ranks, other, theirs):
    for kind, message, seconds in two_ranks.run(captured_apart, other):
        assert kind == "GroupMismatchError"
        assert "first difference at the plan: " in message
        assert theirs in message
        assert seconds < 10 * PATIENCE  # compiles


def test_a_rank_that_alone_measures_its_way_is_refused_on_both(two_ranks):
    for kind, message, seconds in two_ranks.run(captured_apart, {16: {"reduce": "auto"}}):
        assert kind == "GroupMismatchError"
        assert "rank 1 measures how a graph may exchange" in message
        assert seconds < 10 * PATIENCE


def captured_under_two_plans():
    """Rank 0's model was compiled under another plan than its runner has."""
    plan, other = planned(NAMED), planned(NAMED)
    if dist.get_rank() == 0:
        plan = planned({**NAMED, 2: {"reduce": "auto"}})
    return caught(lambda: captured(plan, backend_plan=other))


def test_a_rank_whose_runner_has_another_plan_than_its_model_stops_both(two_ranks):
    (kind, message, _), (peers, heard, seconds) = two_ranks.run(captured_under_two_plans)
    assert kind == "ConfigError"
    assert "compiled under the strategies size 2: reduce = scatter; size 4" in message
    assert "the runner's plan has size 2: reduce = auto" in message
    assert peers == "GroupMismatchError"
    assert "rank 0 failed: plan of size 16: ConfigError: a graph of oproj_npu was compiled" in heard
    assert seconds < 10 * PATIENCE
