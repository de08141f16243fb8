"""Ranks compare their row counts at each call of a compiled graph, before anything can hang or abort."""

from contextlib import nullcontext
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn

from oproj_pass import ConfigError, OProjError
from oproj_pass.agreement.rows_agreed import rows_agreed
from oproj_pass.runtime import ControlGroup
from oproj_pass.weights.placement import Placement
from tests.support.models import Decoder, decoder, rows

pytestmark = pytest.mark.distributed


def compiled(model, **options):
    options = {"oproj_tensor_parallel_size": dist.get_world_size(), "step_timeout": 30, **options}
    return torch.compile(model, backend="oproj_npu", options=options, dynamic=options.pop("dynamic", True))


def attempt(step, x, reference=None):
    """The project error's name and text; without one, the name ``close`` or ``wrong``."""
    try:
        y = step(x)
    except OProjError as error:
        return type(error).__name__, str(error)
    return "close" if torch.allclose(y, (reference or decoder(layers=1))(x), atol=1e-4) else "wrong", ""


def mine(by_rank):
    return rows(by_rank[dist.get_rank()], 32)


@torch.inference_mode()
def calls(counts, warm=(), options=()):
    """An outcome for each of ``counts``, tuples of rows by rank, after calls with the equal ``warm``."""
    step = compiled(decoder(layers=1), **dict(options))
    for count in warm:
        step(rows(count, 32))
    return [attempt(step, mine(by_rank)) for by_rank in counts]


def require_unequal(outcomes, *brought):
    for kind, text in outcomes:
        assert kind == "GroupMismatchError"
        assert "layers.0.attn.o_proj: unequal row counts in this call" in text
        for rank, count in enumerate(brought):
            assert f"rank {rank} brings {count} rows" in text


def test_unequal_rows_are_refused_on_every_rank_and_the_next_call_runs(two_ranks):
    by_rank = two_ranks.run(calls, [(3, 5), (4, 4)], (6,))
    require_unequal([outcomes[0] for outcomes in by_rank], 3, 5)
    assert [outcomes[1] for outcomes in by_rank] == [("close", "")] * 2


def test_unequal_rows_of_the_very_first_call_are_refused(two_ranks):
    by_rank = two_ranks.run(calls, [(3, 5)])
    require_unequal([outcomes[0] for outcomes in by_rank], 3, 5)


def test_unequal_rows_of_graphs_that_both_ranks_have_compiled_are_refused(four_ranks):
    by_rank = four_ranks.run(calls, [(3, 5, 3, 3)], (3, 5), {"dynamic": False})
    require_unequal([outcomes[0] for outcomes in by_rank], 3, 5, 3, 3)


def test_a_rank_that_compiles_hears_of_one_that_calls(two_ranks):
    for outcomes in two_ranks.run(calls, [(3, 5)], (3,), {"dynamic": False}):
        kind, text = outcomes[0]
        assert kind == "GroupMismatchError"
        assert "rank 0 calls a compiled graph; rank 1 compiles a graph" in text


@torch.inference_mode()
def picked_rows(counts):
    """A layer whose rows depend on the data: on how many elements of the first column are positive."""
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        model = Picked()
        step = compiled(model)
        outcomes = []
        for by_rank in counts:
            x = rows(8, 32)
            x[:, 0] = torch.where(torch.arange(8) < by_rank[dist.get_rank()], 1.0, -1.0)
            outcomes.append(attempt(step, x, Picked()))
        return outcomes


class Picked(Decoder):
    def __init__(self):
        super().__init__(layers=1)
        self.load_state_dict(decoder(layers=1).state_dict())
        self.requires_grad_(False)

    def forward(self, x):
        return super().forward(x[(x[:, 0] > 0).nonzero().squeeze(-1)])


def test_rows_that_only_the_graph_knows_are_compared_inside_it(two_ranks):
    for equal, unequal in two_ranks.run(picked_rows, [(4, 4), (3, 5)]):
        assert equal == ("close", "")
        assert unequal[0] == "GroupMismatchError"
        assert "rank 0 brings 3, rank 1 brings 5" in unequal[1]


@torch.inference_mode()
def absent():
    step = compiled(decoder(layers=1), step_timeout=2)
    step(rows(3, 32))
    outcome = attempt(step, rows(3, 32)) if dist.get_rank() == 0 else None
    dist.barrier()  # a rank that went on to the next test would close its connections
    return outcome


def test_a_rank_that_never_calls_is_named(two_ranks):
    kind, text = two_ranks.run(absent)[0]
    assert kind == "GroupMismatchError"
    assert (
        "rank 0 waited for ranks [0, 1] to call the same graph and lost one: rank 1: it did not come" in text
    )
    assert "`step_timeout`" in text


@torch.inference_mode()
def unfit_on_one_rank():
    """A weight arrives that rank 1 cannot cut."""
    model = decoder(layers=1)
    step = compiled(model)
    step(rows(3, 32))
    projection = model.layers[0].attn.o_proj
    projection.weight = nn.Parameter(torch.randn(32, 32), requires_grad=False)
    refusal = ConfigError("this weight cannot be cut") if dist.get_rank() == 1 else None
    with patch.object(Placement, "part_of", side_effect=refusal) if refusal else nullcontext():
        return attempt(step, rows(3, 32))


def test_a_rank_that_cannot_prepare_a_call_tells_its_peers(two_ranks):
    peer, own = two_ranks.run(unfit_on_one_rank)
    assert own == ("ConfigError", "this weight cannot be cut")
    assert peer[0] == "GroupMismatchError"
    assert "rank 1 failed: this weight cannot be cut" in peer[1]


@torch.inference_mode()
def differing_option():
    step = compiled(decoder(layers=1), agree_on_rows=dist.get_rank() == 0)
    return attempt(step, rows(3, 32))


def test_an_option_that_one_rank_has_alone_is_refused(two_ranks):
    for kind, text in two_ranks.run(differing_option):
        assert kind == "GroupMismatchError"
        assert "rank 0 compares them at each call; rank 1 compares them never" in text


@torch.inference_mode()
def meetings(options, agreed):
    """Exchanges on the CPU while a compiled model is called three times more."""
    step = compiled(decoder(layers=1), **options)
    step(rows(3, 32))
    count, exchange = [], ControlGroup.exchange
    ControlGroup.exchange = lambda *args: count.append(1) or exchange(*args)
    try:
        with rows_agreed(agreed):
            for _ in range(3):
                assert attempt(step, rows(4, 32))[0] == "close"
    finally:
        ControlGroup.exchange = exchange
    return len(count)


@pytest.mark.parametrize(
    ("options", "agreed", "expected"),
    [
        ({}, (), 3),
        ({}, (0,), 3),
        ({}, (0, 1), 0),
        ({"agree_on_rows": False}, (), 0),
        ({"capacity": 8}, (), 0),
    ],
)
def test_meets_at_every_call_unless_nothing_is_left_to_compare(two_ranks, options, agreed, expected):
    assert two_ranks.run(meetings, options, agreed) == [expected] * 2


def test_without_the_comparison_a_process_is_lost_or_numbers_are_wrong(two_ranks):
    outcomes = two_ranks.outcomes(calls, [(3, 5)], (6,), {"agree_on_rows": False}, group_timeout=5)
    assert any(kind != "result" or value[0][0] == "wrong" for kind, value in outcomes)
