"""Chunks in flight: the same results, bit by bit; collectives start before earlier ones are awaited."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from oproj_pass.passes.graph.collectives import is_collective
from tests.support import quantised
from tests.support.strategies import ONE_ROUNDING, ROUNDED_SUMS, module_of, rows, sharded

c10d, aten = torch.ops._c10d_functional, torch.ops.aten
INTEGER = [quantised.W8A8Smooth, quantised.W8A8Tensor]
KINDS = [*INTEGER, quantised.ScaledRow, nn.Linear]
STRATEGIES = {"row": {}, "column": {}, "grid": {"mesh": (2, 2)}}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", KINDS)
def test_is_the_unchunked_exchange_bit_by_bit_or_to_one_rounding_of_a_float_sum(strategy, kind):
    if strategy == "grid" and kind is quantised.W8A8Smooth:
        pytest.skip("a grid refuses an int32 bias in units of scales of rows")
    module, xs, options = module_of(kind), rows(4, 5, 64), STRATEGIES[strategy]
    whole = sharded(module, xs, strategy, **options)
    chunked = sharded(module, xs, strategy, chunks=2, least_chunk_nbytes=0, **options)
    assert chunked.record.regions[0].config.chunks == 2
    if kind in INTEGER:
        assert all(map(torch.equal, chunked.outputs, whole.outputs))
    assert replace(chunked, expected=whole.outputs).error <= ONE_ROUNDING


def test_keeps_the_shape_of_several_leading_dimensions():
    outcome = sharded(module_of(nn.Linear), rows(4, 2, 3, 64), "row", chunks=3, least_chunk_nbytes=0)
    assert outcome.record.regions[0].config.chunks == 3
    assert outcome.outputs[0].shape == (2, 3, 32)
    assert outcome.error < ROUNDED_SUMS


def chunked_nodes(reduce="exchange"):
    options = {"chunks": 2, "least_chunk_nbytes": 0, "reduce": reduce}
    outcome = sharded(module_of(nn.Linear), rows(4, 4, 64), "row", **options)
    return list(outcome.record.regions[0].nodes)


@pytest.mark.parametrize("reduce", ["scatter", "exchange"])
def test_starts_each_exchange_before_the_product_that_it_runs_under(reduce):
    events = []
    for node in chunked_nodes(reduce):
        if is_collective(node):
            events.append("start")
        elif node.target is c10d.wait_tensor.default:
            events.append("wait")
        elif node.target is aten.linear.default:
            events.append("product")
    first, second = ["start", "start"], ["wait", "product", "start"] * 2
    assert events == [*first, *second, "wait", "wait"]


def test_lists_its_nodes_in_the_order_of_the_graph():
    nodes = chunked_nodes()
    order = {node: place for place, node in enumerate(nodes[0].graph.nodes)}
    places = [order[node] for node in nodes]
    assert places == list(range(places[0], places[0] + len(nodes)))


def test_joining_the_chunks_in_another_order_shows():
    """The negative control."""

    def swap(gm):
        (joined,) = gm.graph.find_nodes(op="call_function", target=aten.cat.default)
        joined.update_arg(0, joined.args[0][::-1])

    options = {"chunks": 2, "least_chunk_nbytes": 0}
    assert sharded(module_of(nn.Linear), rows(4, 4, 64), "row", edit=swap, **options).error > ROUNDED_SUMS


@pytest.mark.parametrize(
    "options", [{"chunks": 2}, {"chunks": 8}, {"chunks": 2, "capacity": 8}, {"chunks": 2, "dynamic": True}]
)
def test_leaves_rows_together_where_chunks_cannot_pay(options):
    outcome = sharded(module_of(nn.Linear), rows(4, 4, 64), "row", **options)
    assert outcome.record.regions[0].config.chunks == 1
