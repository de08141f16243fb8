"""Chunks in flight in both Ascend compilers: npugraph_ex's captures on a fake device, torchair's GE graph."""

import pytest

from tests.ascend.support import serving
from tests.ascend.support.lowering import by_backend, lower
from tests.ascend.support.trace import captured_models, is_risky
from tests.passes.overlap.test_chunks import STRATEGIES, graph_of
from tests.support import streams
from tests.support.streams import streams_of

LAYERS, ROWS = 2, 3000
CHUNKED = ["row", "column", "grid"]
COLLECTIVES = {
    "row": ["HcomAllToAll", "HcomReduceScatter"],
    "column": ["HcomAllGather", "HcomAllToAll"],
    "grid": ["HcomAllToAll", "HcomAllGather", "HcomReduceScatter", "HcomAllToAll"],
}


def options(strategy):
    return {"oproj_tensor_parallel_size": serving.RANKS, "strategy": strategy, "chunks": 2}


def capture_all():
    """What the device logs of a decoder in two chunks, by strategy."""
    import torch

    serving.fake_world()
    found = {}
    for strategy in CHUNKED:
        torch._dynamo.reset()
        model = serving.decoder(LAYERS)
        seen = len(serving.events())
        step = by_backend(model, "npugraph_ex", **options(strategy))
        for _ in range(2):
            step(serving.rows(ROWS))
        found[strategy] = serving.events()[seen:]
    return found


def lower_all():
    """The operators of the same decoder's GE graph, by strategy."""
    import torch

    serving.fake_world()
    found = {}
    for strategy in CHUNKED:
        torch._dynamo.reset()
        step = by_backend(serving.decoder(LAYERS), "npu", **options(strategy))
        found[strategy] = lower(step, {"x": serving.rows(ROWS)})
    return found


@pytest.fixture(scope="module")
def all_captured(npu_process):
    return npu_process(capture_all, timeout=600).value


@pytest.fixture(scope="module")
def all_operators(torchair_process):
    return torchair_process(lower_all)


@pytest.fixture(params=CHUNKED)
def captured(request, all_captured):
    """The strategy, the main stream and what is recorded and awaited while it is captured."""
    ((main, lines),) = captured_models(all_captured[request.param])
    return (
        request.param,
        main,
        [dict(field.split("=") for field in line.split()[1:3]) | {"what": line.split()[0]} for line in lines],
    )


@pytest.fixture(params=CHUNKED)
def operators(request, all_operators):
    return request.param, all_operators[request.param]


def test_npugraph_ex_captures_one_side_stream_and_two_events_an_exchange(captured):
    """And two of its own: the side stream joins the capture at its begin and ends with it."""
    strategy, _, lines = captured
    exchanges = 2 * LAYERS * len(COLLECTIVES[strategy])
    assert len({line["stream"] for line in lines}) == 2
    for what in ("record", "wait"):
        assert sum(line["what"] == what for line in lines) == 2 * exchanges + 2


def test_npugraph_ex_records_every_event_before_another_stream_waits_for_it(captured):
    recorded = {}
    for line in captured[2]:
        if line["what"] == "record":
            recorded[line["event"]] = line["stream"]
        else:
            assert recorded[line["event"]] != line["stream"]


def test_npugraph_ex_starts_the_next_chunk_before_the_main_stream_waits_for_one(captured):
    """Each layer's first two exchanges are under way before either is awaited."""
    strategy, main, lines = captured
    steps = [line["what"] for line in lines if line["stream"] == main]
    per_layer = 2 * 2 * len(COLLECTIVES[strategy])
    for layer in range(LAYERS):
        assert steps[1 + layer * per_layer :][:3] == ["record", "record", "wait"]


def test_npugraph_ex_captures_a_step_once_and_replays_it(all_captured):
    for events in all_captured.values():
        assert [line.split("#")[1] for line in events if line.startswith("replay")] == ["1", "2"]


def hcom(operators):
    return [one for one in operators if one.type.startswith("Hcom")]


def test_torchair_labels_the_exchanges_and_no_product(operators):
    strategy, found = operators
    assert {one.stream for one in hcom(found)} == {"oproj.chunks"}
    assert {one.stream for one in found if one.type.endswith("MatMul")} == {None}
    expected = sorted(COLLECTIVES[strategy] * 2 * LAYERS)
    assert sorted(one.type for one in hcom(found)) == expected


def above(operators, one):
    """Everything that has to come before an operator: what it reads or waits for, and so on."""
    by_name = {operator.name: operator for operator in operators}
    pending, found = [one], set()
    while pending:
        for name in pending.pop().inputs:
            if name in by_name and name not in found:
                found.add(name)
                pending.append(by_name[name])
    return found


def test_torchair_lets_one_chunks_exchange_run_under_anothers_product(operators):
    """Neither has to come before the other, whether by what is read or by a control edge."""
    strategy, found = operators
    kinds = len(COLLECTIVES[strategy])
    of_the_last_layer = hcom(found)[-2 * kinds :]
    arriving, leaving = of_the_last_layer[kinds - 2 : kinds], of_the_last_layer[kinds : kinds + 2]
    first, second = (
        next(one for one in found[::-1] if one.type == "MatMul" and one.name in above(found, end))
        for end in leaving
    )
    assert arriving[0].name in above(found, first)
    assert arriving[1].name not in above(found, first)
    assert first.name not in above(found, arriving[1])
    assert second.name not in above(found, leaving[0])
    assert leaving[0].name not in above(found, second)


def test_torchair_waits_for_an_event_where_it_crosses_streams(operators):
    _, found = operators
    stream_of = {one.name: one.stream for one in found}
    crossings = {(stream_of[name], one.stream) for one in found for name in one.waits_for}
    assert crossings == {(None, "oproj.chunks"), ("oproj.chunks", None)}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_compilers_own_check_finds_no_deadlock_in_the_schedule(strategy, tmp_path, capsys):
    assert not is_risky(graph_of(strategy), tmp_path, capsys)


def test_exchanges_on_a_stream_each_can_deadlock(tmp_path, capsys):
    """The check's negative control, and the reason for one side stream."""
    graph = graph_of("grid")
    for number, node in enumerate([node for node in graph.nodes if node.target is streams.enter]):
        node.args = (f"{node.args[0]}.{number}",)
    assert len({*streams_of(graph).values()}) > 2
    assert is_risky(graph, tmp_path, capsys)
