"""``plan``: the capture plan in force decides whether a graph is sharded at all."""

import logging

import torch
from torch import nn

from oproj_pass.capture import StepBound, plan_capture
from tests.support.fake import fake_world
from tests.support.models import decoder, rows

BOUND = StepBound(max_num_seqs=24, max_num_batched_tokens=64)
COVERS, TOO_SMALL = plan_capture(BOUND), plan_capture(BOUND, max_size=16)


def recording(operators):
    """An inner backend that notes the operators of its graph."""

    def inner(gm, _):
        operators.extend(node.target for node in gm.graph.nodes if node.op == "call_function")
        return gm

    return inner


def compiled_under(plan):
    """The model and the operators of the graph that the inner backend got."""
    model, seen = decoder(), []
    options = {"plan": plan, "inner_backend": recording(seen), "oproj_tensor_parallel_size": 2}
    with fake_world(2), torch.inference_mode():
        torch.compile(model, backend="oproj_npu", options=options)(rows(3, 32))
    return model, seen


def is_exchange(target):
    return target is torch.ops._c10d_functional.all_to_all_single.default


def test_a_plan_that_covers_shards():
    model, operators = compiled_under(COVERS)
    assert COVERS.covers
    assert sum(map(is_exchange, operators)) == len(model.layers)
    assert all(type(layer.attn.o_proj.weight) is not nn.Parameter for layer in model.layers)


def test_a_plan_that_does_not_cover_turns_sharding_off_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        model, operators = compiled_under(TOO_SMALL)
    assert not TOO_SMALL.covers
    assert f"o_proj sharding is off: {TOO_SMALL.warning}" in caplog.text
    assert all(type(p) is nn.Parameter and p.untyped_storage().nbytes() for p in model.parameters())
    assert not any(map(is_exchange, operators))


def test_without_coverage_the_graph_is_the_one_without_sharding():
    plain = []
    with torch.inference_mode():
        torch.compile(decoder(), backend=recording(plain))(rows(3, 32))
    torch._dynamo.reset()
    assert compiled_under(TOO_SMALL)[1] == plain


def test_no_plan_shards():
    assert any(map(is_exchange, compiled_under(None)[1]))
