"""Exchanges of chunks on a side stream, one after the other, each under another chunk's product."""

import pytest
import torch
from torch import nn

from oproj_pass.errors import StreamOrderError
from oproj_pass.passes import Exchange, OverlapExchange, ShardOProj, run_passes
from oproj_pass.passes.graph.collectives import ends_collective, is_collective
from oproj_pass.passes.overlap.chunks import STREAM, ChunksInFlight
from oproj_pass.passes.overlap.order import RequireStreamOrder, require_stream_order
from tests.support import streams
from tests.support.models import parallel_decoder
from tests.support.models import rows as decoder_rows
from tests.support.strategies import ROUNDED_SUMS, module_of, rows, sharded
from tests.support.streams import PlainStreams, early_frees, streams_of, unordered_reads

aten = torch.ops.aten
STRATEGIES = {
    "row": {}, "column": {}, "grid": {"mesh": (2, 2)}, "row, exchanged": {"reduce": "exchange"},
}  # fmt: skip


def in_flight(regions):
    return [ChunksInFlight(regions, PlainStreams()), RequireStreamOrder(PlainStreams())]


def step(strategy, chunks=2, edit=None, then=in_flight):
    options = {**STRATEGIES[strategy], "chunks": chunks, "least_chunk_nbytes": 0, "edit": edit, "then": then}
    return sharded(module_of(nn.Linear), rows(4, 6, 64), strategy.partition(",")[0], **options)


def graph_of(strategy, **options):
    seen = []
    step(strategy, edit=lambda gm: seen.append(gm.graph), **options)
    return seen[0]


@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_keeps_every_ranks_result(strategy, chunks):
    assert step(strategy, chunks).error < ROUNDED_SUMS


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_puts_collectives_and_their_waits_on_the_side_stream_and_nothing_else(strategy):
    graph = graph_of(strategy)
    for node, stream in streams_of(graph).items():
        if is_collective(node) or ends_collective(node):
            assert stream == STREAM
            assert is_collective(node) or node.prev is node.args[0]
        elif node.target not in streams.MARKS:
            assert stream is None


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_orders_every_read_across_streams_and_holds_what_the_side_reads(strategy):
    graph = graph_of(strategy)
    assert unordered_reads(graph) == []
    assert early_frees(graph) == []


def events(graph):
    """Starts of exchanges, where the main stream waits for one of them, and products."""
    stream_of, found = streams_of(graph), []
    for node in graph.nodes:
        if is_collective(node):
            found.append("start")
        elif node.target is streams.wait and stream_of[node] is None:
            found.append("wait")
        elif node.target is aten.linear.default:
            found.append("product")
    return found


def test_the_main_stream_waits_for_an_exchange_where_it_needs_it_and_multiplies_meanwhile():
    first, second = ["start", "start"], ["wait", "product", "start"] * 2
    assert events(graph_of("row")) == [*first, *second, "wait", "wait"]


def test_leaves_rows_that_are_exchanged_in_one_piece_on_one_stream():
    assert {*streams_of(graph_of("row", chunks=1)).values()} == {None}


MUTANTS = {
    "no wait for what is sent": lambda node: node.target is streams.wait and "ready" in node.args[0],
    "no wait for what arrived": lambda node: node.target is streams.wait and "done" in node.args[0],
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_schedule_without_one_of_its_waits_is_refused(strategy, mutant):
    graph = graph_of(strategy)
    lost = next(filter(MUTANTS[mutant], graph.nodes))
    graph.erase_node(lost)
    with pytest.raises(StreamOrderError, match="no event says that it is made"):
        require_stream_order(graph, PlainStreams())


def test_a_projection_that_runs_beside_other_work_keeps_its_exchanges_on_a_stream_of_their_own():
    program = torch.export.export(parallel_decoder(), (decoder_rows(6, 32),))
    parameters = program.graph_signature.inputs_to_parameters
    exchange = Exchange(2, "group", chunks=2, least_chunk_nbytes=0)
    sharding = ShardOProj(exchange, parameters=parameters)
    beside = OverlapExchange(sharding.regions, PlainStreams())
    _, record, *_ = run_passes(program.graph_module, (), [sharding, beside, *in_flight(sharding.regions)])
    graph = program.graph_module.graph
    assert len(record.matches) == 2
    stream_of = streams_of(graph)
    assert {stream for node, stream in stream_of.items() if is_collective(node)} == {STREAM}
    assert (
        sum(stream == "oproj" for node, stream in stream_of.items() if node.target is aten.linear.default)
        == 4
    )
    assert unordered_reads(graph) == []
    assert early_frees(graph) == []


def test_a_schedule_that_starts_a_collective_before_another_groups_has_ended_is_refused():
    """A grid has two groups."""
    graph = graph_of("grid")
    awaited = {node.args[0]: node for node in graph.nodes if node.target is streams.wait}
    for node in list(filter(ends_collective, graph.nodes)):
        awaited[node.next.args[0]].append(node)
    with pytest.raises(StreamOrderError, match="two collectives at once can deadlock"):
        require_stream_order(graph, PlainStreams())
