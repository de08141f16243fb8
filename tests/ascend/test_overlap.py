"""The overlapped schedule in real compilers: npugraph_ex's captures on a fake device, torchair's GE graph."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from oproj_pass.passes import Exchange, ShardOProj, run_passes
from oproj_pass.passes.overlap import side_stream as overlap
from oproj_pass.passes.overlap.side_stream import OverlapExchange
from tests.ascend.support.trace import is_risky
from tests.support import streams
from tests.support.models import decoder, parallel_decoder, rows

HIDDEN, HEADS, HEAD_DIM, RANKS, LAYERS = 32, 4, 16, 4, 2


class Layer(nn.Module):
    """Of operations that both compilers take; ``parallel``: the MLP reads the attention's own input."""

    def __init__(self, parallel):
        super().__init__()
        self.parallel = parallel
        self.qkv = nn.Linear(HIDDEN, 3 * HEADS * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 48), nn.Linear(48, HIDDEN)

    def forward(self, x):
        q, k, v = (part.view(-1, HEADS, HEAD_DIM).transpose(0, 1) for part in self.qkv(x).chunk(3, -1))
        y = torch.softmax(q @ k.transpose(1, 2), -1) @ v
        attended = self.o_proj(y.transpose(0, 1).reshape(-1, HEADS * HEAD_DIM))
        return x + attended + self.down(torch.relu(self.up(x if self.parallel else x + attended)))


def run_twice(parallel, inner_backend):
    if not dist.is_initialized():
        dist.init_process_group("cpu:fake,npu:fake", store=FakeStore(), rank=0, world_size=RANKS)
    model = nn.Sequential(*(Layer(parallel) for _ in range(LAYERS))).eval().requires_grad_(False).npu()
    options = {"oproj_tensor_parallel_size": RANKS, "overlap": True, "inner_backend": inner_backend}
    compiled = torch.compile(model, backend="oproj_npu", fullgraph=True, dynamic=False, options=options)
    for _ in range(2):
        compiled(torch.zeros(3, HIDDEN).npu())


def capture_both():
    """What the device logs of a sequential and of a parallel decoder."""
    log, seen, events = Path(os.environ["CANN_STUB_EVENTS"]), 0, {}
    for parallel in (False, True):
        run_twice(parallel, "npugraph_ex")
        events[parallel] = log.read_text().splitlines()[seen:]
        seen += len(events[parallel])
    return events


def lower():
    """Operators of torchair's GE graph: type, name, stream label and control inputs."""
    import torchair
    from torchair._ge_concrete_graph.fx2ge_converter import GeConcreteGraph

    found, finish = [], GeConcreteGraph.optimize_graph_without_runtime

    def keep(graph, *args, **kwargs):
        for node in graph.graph._proto.op:
            label = node.attr["_user_stream_label"].s.decode() if "_user_stream_label" in node.attr else None
            control = [name for name in node.input if name.endswith(":-1")]
            found.append(SimpleNamespace(type=node.type, name=node.name, stream=label, control=control))
        return finish(graph, *args, **kwargs)

    GeConcreteGraph.optimize_graph_without_runtime = keep
    config = torchair.CompilerConfig()
    config.debug.run_eagerly = True
    run_twice(True, torchair.get_npu_backend(compiler_config=config))
    return found


@pytest.fixture(scope="module")
def captured(npu_process):
    return npu_process(capture_both).value


@pytest.fixture(scope="module")
def operators(npu_process):
    return npu_process(lower).value


def in_capture(events, kind):
    return [line for line in events if line.startswith(kind) and line.endswith("capturing")]


def fields(line):
    return dict(word.split("=") for word in line.split() if "=" in word)


def test_npugraph_ex_captures_a_second_stream_where_there_is_independent_work(captured):
    used = {fields(line)["stream"] for line in in_capture(captured[True], ("record", "wait"))}
    assert len(used) == 2


def test_npugraph_ex_records_and_awaits_two_events_a_projection(captured):
    """And two of its own: the side stream joins the capture at its begin and ends with it."""
    records, waits = in_capture(captured[True], "record"), in_capture(captured[True], "wait")
    assert len(records) == len(waits) == 2 * LAYERS + 2
    assert {fields(line)["event"] for line in records} == {fields(line)["event"] for line in waits}


def test_every_event_orders_two_different_streams(captured):
    recorded = {}
    for line in in_capture(captured[True], ("record", "wait")):
        event, stream = fields(line)["event"], fields(line)["stream"]
        if line.startswith("record"):
            recorded[event] = stream
        else:
            assert recorded[event] != stream


def test_a_sequential_decoder_is_captured_on_one_stream_without_events(captured):
    assert in_capture(captured[False], ("record", "wait")) == []


def test_both_are_captured_once_and_replayed(captured):
    for events in captured.values():
        assert [line.split("#")[1] for line in events if line.startswith("replay")] == ["1", "2"]


def test_torchair_labels_the_projections_operators_and_no_others(operators):
    side = [operator.type for operator in operators if operator.stream == overlap.STREAM]
    main = [operator.type for operator in operators if operator.stream is None]
    for kind in ("HcomAllToAll", "HcomReduceScatter"):
        assert (side.count(kind), main.count(kind)) == (LAYERS, 0)
    assert sum(kind.startswith("MatMul") for kind in side) == LAYERS
    assert sum(kind.startswith("MatMul") for kind in main) == 3 * LAYERS


def test_torchair_orders_both_streams_by_control_edges(operators):
    stream_of = {operator.name: operator.stream for operator in operators}
    crossings = [
        (stream_of[edge.rpartition(":")[0]], operator.stream)
        for operator in operators
        for edge in operator.control
    ]
    assert crossings == [(None, overlap.STREAM), (overlap.STREAM, None)] * LAYERS


def overlapped(model, refuse=True):
    """A model's graph with its projections overlapped, whatever the pass says if not ``refuse``."""
    program = torch.export.export(model, (rows(3, 32),))
    gm, parameters = program.graph_module, program.graph_signature.inputs_to_parameters
    with pytest.MonkeyPatch.context() as patch:
        if not refuse:
            patch.setattr(overlap, "_refusal", lambda region: None)
        sharding = ShardOProj(Exchange(2, "group"), parameters=parameters)
        _, record = run_passes(gm, (), [sharding, OverlapExchange(sharding.regions, streams.PlainStreams())])
    return gm.graph, record


class CommunicatingMlp(nn.Module):
    def forward(self, x):
        reduced = torch.ops._c10d_functional.all_reduce(x, "sum", "group")
        return torch.ops._c10d_functional.wait_tensor(reduced)


def communicating_decoder():
    model = parallel_decoder()
    for layer in model.layers:
        layer.up = nn.Sequential(CommunicatingMlp(), layer.up)
    return model


def test_the_compilers_own_check_finds_no_deadlock_in_the_schedule(tmp_path, capsys):
    graph, record = overlapped(parallel_decoder())
    assert len(record.matches) == 2
    assert not is_risky(graph, tmp_path, capsys)


def test_a_schedule_that_the_pass_refuses_can_deadlock(tmp_path, capsys):
    """The check's negative control, and the reason for the refusal."""
    _, record = overlapped(communicating_decoder())
    assert all("two collectives at once can deadlock" in miss.reason for miss in record.near_misses)
    assert len(record.near_misses) == 2
    forced, _ = overlapped(communicating_decoder(), refuse=False)
    assert is_risky(forced, tmp_path, capsys)


def test_leaves_a_sequential_schedule_on_one_stream(tmp_path, capsys):
    graph, record = overlapped(decoder())
    assert record.is_clean
    assert not is_risky(graph, tmp_path, capsys)
