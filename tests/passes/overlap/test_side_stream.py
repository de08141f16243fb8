"""The overlapping pass alone: what it puts beside the exchange, what it leaves alone, and the order of it."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.fx import Graph, GraphModule

from oproj_pass.passes import Exchange, ShardOProj, run_passes
from oproj_pass.passes.graph.provenance import module_path
from oproj_pass.passes.overlap.side_stream import OverlapExchange
from oproj_pass.passes.strategies.region import ShardedRegion
from tests.support import streams
from tests.support.fake import fake_world, run_on_all_ranks
from tests.support.models import Block, ParallelBlock, decoder, parallel_decoder, rows
from tests.support.streams import PlainStreams, early_frees, streams_of, unordered_reads

c10d, aten = torch.ops._c10d_functional, torch.ops.aten


class ParallelWithDropout(Block):
    """Phi's: something cheap reads the attention's result before the MLP runs."""

    def forward(self, x):
        y = self.norm(x)
        attended = F.dropout(self.attn(y), 0.1, self.training)
        return x + attended + self.down(F.silu(self.up(y)))


class MlpFirst(Block):
    """Nothing follows the attention but its result's readers."""

    def forward(self, x):
        y = self.norm(x)
        fed = self.down(F.silu(self.up(y)))
        return x + fed + self.attn(y)


class WritesInPlace(Block):
    def forward(self, x):
        y = self.norm(x)
        attended = self.attn(y)
        return x + attended + self.down(self.up(y).mul_(2))


def overlap(program, group="group"):
    parameters = program.graph_signature.inputs_to_parameters
    sharding = ShardOProj(Exchange(2, group), parameters=parameters)
    passes = [sharding, OverlapExchange(sharding.regions, PlainStreams())]
    return run_passes(program.graph_module, (), passes)


def overlapped(model):
    program = torch.export.export(model, (rows(3, 32),))
    _, record = overlap(program)
    return program.graph_module, record


def targets(gm, stream):
    return [node.target for node, found in streams_of(gm.graph).items() if found == stream]


@pytest.mark.parametrize("block", [ParallelBlock, ParallelWithDropout])
def test_puts_each_projection_on_the_side_and_leaves_the_rest_on_the_main_stream(block):
    gm, record = overlapped(parallel_decoder(block))
    side, main = targets(gm, "oproj"), targets(gm, None)
    assert [match.path for match in record.matches] == ["layers.0.attn.o_proj", "layers.1.attn.o_proj"]
    for target in (c10d.all_to_all_single.default, c10d.reduce_scatter_tensor.default):
        assert (side.count(target), main.count(target)) == (2, 0)
    assert side.count(aten.linear.default) == 2
    assert main.count(aten.linear.default) == 6


@pytest.mark.parametrize("block", [ParallelBlock, ParallelWithDropout])
def test_pairs_two_events_a_projection_around_the_independent_work(block):
    gm, _ = overlapped(parallel_decoder(block))
    events = [
        (n.target.__name__, n.args[0]) for n in gm.graph.nodes if n.target in (streams.record, streams.wait)
    ]
    assert events == [
        (kind, f"oproj.{layer}.{event}")
        for layer in range(2)
        for event in ("ready", "done")
        for kind in ("record", "wait")
    ]
    (first, *_) = (n for n in gm.graph.nodes if n.target is streams.record and n.args[0].endswith("0.done"))
    between = []
    while first.target is not streams.wait or not first.args[0].endswith("done"):
        between.append(module_path(first) if first.op == "call_function" else "")
        first = first.next
    assert {"layers.0.up", "layers.0.down"} <= set(between)


@pytest.mark.parametrize("block", [ParallelBlock, ParallelWithDropout])
def test_orders_every_read_across_streams_and_holds_what_the_side_reads(block):
    gm, _ = overlapped(parallel_decoder(block))
    assert unordered_reads(gm.graph) == []
    assert early_frees(gm.graph) == []


@pytest.mark.parametrize(
    ("dropped", "check"),
    [("ready", unordered_reads), ("done", unordered_reads), (streams.hold, early_frees)],
)
def test_the_check_of_the_order_sees_what_is_missing(dropped, check):
    gm, _ = overlapped(parallel_decoder(ParallelBlock))
    for node in list(gm.graph.nodes):
        lost = node.target is streams.wait and node.args[0].endswith(str(dropped))
        if lost or node.target is dropped:
            gm.graph.erase_node(node)
    assert check(gm.graph)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (decoder(), "no product or attention before the first one that needs its result is independent"),
        (parallel_decoder(MlpFirst), "no product or attention before the first one that needs its result"),
        (parallel_decoder(WritesInPlace), "writes in place at the same time"),
    ],
    ids=["sequential", "mlp first", "in place"],
)
def test_leaves_a_projection_on_the_main_stream_and_says_why(model, reason):
    gm, record = overlapped(model)
    assert record.is_clean
    assert set(streams_of(gm.graph).values()) == {None}
    assert [miss.path for miss in record.near_misses] == ["layers.0.attn.o_proj", "layers.1.attn.o_proj"]
    assert all(reason in miss.reason for miss in record.near_misses)


@pytest.mark.parametrize("block", [ParallelBlock, ParallelWithDropout])
def test_keeps_every_ranks_result(block):
    model = parallel_decoder(block)
    program = torch.export.export(model, (rows(3, 32),))
    parameters = program.graph_signature.inputs_to_parameters
    weights = {placeholder: model.get_parameter(name) for placeholder, name in parameters.items()}
    inputs = [(rows(3, 32),) for _ in range(2)]
    with fake_world(2) as name:
        sharding, record = overlap(program, name)
        outputs = run_on_all_ranks(program.graph_module, sharding, weights, inputs, 2)
    assert len(record.matches) == 2
    for y, (x,) in zip(outputs, inputs, strict=True):
        torch.testing.assert_close(y, model(x))


class Dispatching(nn.Linear):
    """An exchange of the model's own, as of an MoE layer."""

    def forward(self, x):
        received = c10d.all_to_all_single(x, [2, 2], [2, 2], "group")
        return super().forward(c10d.wait_tensor(received))


def test_leaves_the_models_own_exchanges_alone():
    model = nn.Sequential(Dispatching(32, 32), nn.Linear(32, 32)).requires_grad_(False)
    program = torch.export.export(model, (rows(4, 32),))
    record = OverlapExchange([], PlainStreams())(program.graph_module, ())
    assert (record.is_clean, record.near_misses) == (True, ())


OPERATIONS = st.sampled_from([aten.mm.default, aten.add.Tensor, aten.mul.Tensor])
PROGRAMS = st.lists(st.tuples(OPERATIONS, st.integers(0, 9), st.integers(0, 9)), max_size=12)


def random_graph(program):
    """A projection, then each operation on two values before it (0: the input, 1: the projection's)."""
    graph = Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("weight")
    start = graph.call_function(aten.mm.default, (x, x))
    sent = graph.call_function(c10d.all_to_all_single.default, (start, [4, 4], [4, 4], "group"))
    received = graph.call_function(c10d.wait_tensor.default, (sent,))
    partial = graph.call_function(aten.mm.default, (received, weight))
    scattered = graph.call_function(c10d.reduce_scatter_tensor.default, (partial, "sum", 2, "group"))
    result = graph.call_function(c10d.wait_tensor.default, (scattered,))
    region = ShardedRegion(
        "attn.o_proj", "row", Exchange(2, "group"), (), (), (sent, received), (partial,), (scattered, result)
    )
    values = [start, result]
    for operation, left, right in program:
        arguments = (values[left % len(values)], values[right % len(values)])
        values.append(graph.call_function(operation, arguments))
    graph.output(values[-1])
    for node in graph.nodes:
        node.meta["val"] = torch.empty(8, 8)
    return GraphModule(nn.Module(), graph), region


def has_independent_product(program):
    """Whether a product that does not need the projection comes before the first one that does."""
    needs = [False, True]
    for operation, left, right in program:
        reads = needs[left % len(needs)] or needs[right % len(needs)]
        if operation is aten.mm.default:
            return not reads
        needs.append(reads)
    return False


@settings(deadline=None)
@given(PROGRAMS)
def test_overlaps_iff_there_is_independent_work_and_then_everything_is_ordered(program):
    gm, region = random_graph(program)
    dataflow = {node.name: [source.name for source in node.all_input_nodes] for node in gm.graph.nodes}
    record = OverlapExchange([region], PlainStreams())(gm, ())
    assert bool(record.matches) == has_independent_product(program)
    gm.graph.lint()
    assert unordered_reads(gm.graph) == []
    assert early_frees(gm.graph) == []
    left = {node.name: [source.name for source in node.all_input_nodes] for node in gm.graph.nodes}
    assert {name: sources for name, sources in left.items() if name in dataflow} == dataflow
