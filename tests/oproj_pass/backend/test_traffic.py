"""What a graph sends is read from its collectives, and is what its strategies say of a token."""

import pytest
import torch

from oproj_pass import explain
from oproj_pass.agreement.sharded_calls import sharded_calls
from oproj_pass.backend.traffic import GraphTraffic
from oproj_pass.passes.graph.provenance import placeholders
from tests.support.fake import fake_world
from tests.support.family import ids, language_model
from tests.support.models import decoder

SIZES = {f"{role}_tensor_parallel_size": 4 for role in ("oproj", "mlp", "embedding")}


@torch.inference_mode()
def sent_by_calls(model, options, *inputs, dynamic=False):
    """Bytes that each call of the sharded model sends."""
    torch._dynamo.reset()
    step = torch.compile(
        model, backend="oproj_npu", options={"inner_backend": "eager", **options}, dynamic=dynamic
    )
    sent = []
    for x in inputs:
        with sharded_calls() as calls:
            step(x)
        sent.append(calls.sent_nbytes)
    return sent


@pytest.mark.parametrize("strategy", ["row", "column"])
@pytest.mark.parametrize("reduce", ["scatter", "exchange"])
def test_a_projection_sends_what_its_strategy_says(strategy, reduce):
    options = {"oproj_tensor_parallel_size": 4, "strategy": strategy, "reduce": reduce}
    said = explain(
        decoder(), torch.randn(3, 32), config={"oproj_tensor_parallel_size": 4, "strategy": strategy}
    )
    a_row = sum(row.sent_nbytes(4) for row in said.projections)
    with fake_world(4):
        assert sent_by_calls(decoder(), options, torch.randn(3, 32)) == [3 * a_row]


def test_every_role_sends_what_its_strategy_says():
    config = {"finegrained_tp_config": SIZES}
    said = explain(language_model(), ids(5, 1), config=config)
    assert {row.role for row in said.projections} == {"oproj", "mlp", "embedding"}
    a_row = sum(row.sent_nbytes(4) for row in said.projections)
    with fake_world(4):
        assert sent_by_calls(language_model(), config, ids(5, 1)) == [5 * a_row]


def test_a_symbolic_row_count_is_read_from_each_call():
    options = {"oproj_tensor_parallel_size": 4}
    with fake_world(4):
        three, seven = sent_by_calls(decoder(), options, torch.randn(3, 32), torch.randn(7, 32), dynamic=True)
    assert three > 0
    assert (three % 3, three * 7) == (0, seven * 3)


def test_an_exchange_of_fixed_capacity_sends_all_of_it():
    options = {"oproj_tensor_parallel_size": 4, "agree_on_rows": False}
    with fake_world(4):
        (sixteen,) = sent_by_calls(decoder(), options, torch.randn(16, 32))
        (three,) = sent_by_calls(decoder(), {**options, "capacity": 16}, torch.randn(3, 32))
    assert three == sixteen


def test_an_unsharded_model_sends_nothing():
    with fake_world(4):
        assert sent_by_calls(decoder(), {"oproj_tensor_parallel_size": 0}, torch.randn(3, 32)) == [0]


def test_a_collective_whose_bytes_nothing_shows_makes_the_traffic_unknown():
    def gm_of(operator):
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        x.meta["example_value"] = torch.zeros(4)
        graph.output(graph.call_function(operator, (x, "sum", "0")))
        return torch.fx.GraphModule({}, graph)

    with fake_world(4):
        known, unknown = (
            gm_of(getattr(torch.ops._c10d_functional, name).default) for name in ("all_reduce", "broadcast")
        )
        assert GraphTraffic.of(known, placeholders(known)).of_rows(1) == 4 * 4 * 2 * 3 // 4
        assert GraphTraffic.of(unknown, placeholders(unknown)) is None
