"""Through npugraph_ex each planned size is captured once, each step is one replay, no weight is copied."""

import pytest

from tests.ascend.support import serving

SIZES = {True: [2, 4, 8, 16], False: [2, 8]}  # by dynamic; static sizes compile one by one
SERVED = [3, 2, 1, 8, 5, 2]


def serve(dynamic):
    serving.fake_world()
    model = serving.decoder()
    runner = serving.runner_of(serving.sharded(model, dynamic=dynamic, clone_input=dynamic), SIZES[dynamic])
    runner.capture({"x": serving.rows(1)})
    facts = {"armed": runner.armed, "captured": serving.counters(), "steps": [], "shapes": []}
    for num_tokens in SERVED:
        batch = {"x": serving.rows(num_tokens)}
        facts["steps"].append(
            serving.events_of(lambda b=batch: facts["shapes"].append(tuple(runner.step(b).shape)))
        )
    facts["steps"].append(serving.events_of(lambda: runner.idle_step({})))
    metas = [meta for graph in serving.acl_graphs() for meta in graph.graphs_meta.values()]
    projection = model.layers[0].o_proj.weight.shard.tensor
    rest = [weight for name, weight in model.named_buffers()] + [model.layers[0].q_proj.weight]
    return facts | {
        "served": serving.counters(),
        "weights": sorted(weight.data_ptr() for weight in (projection, *rest)),
        "read_by_address": [sorted(meta.captured_parameter.values()) for meta in metas],
        "inputs": [tuple(copy.shape) for meta in metas for copy in meta.userinputs_metatensor.values()],
        "input_addresses": {data.data_ptr for meta in metas for data in meta.userinputs_meta.values()},
        "runners_address": runner._inputs.rows["x"].views[2].data_ptr(),
    }


@pytest.fixture(scope="module", params=[True, False], ids=["dynamic", "static without clone_input"])
def served(request, npu_process):
    return request.param, npu_process(serve, request.param)


def test_each_planned_size_is_captured_once(served):
    dynamic, outcome = served
    sizes, fx_graphs = len(SIZES[dynamic]), 1 if dynamic else len(SIZES[dynamic])
    assert outcome.value["armed"]
    assert len(outcome.value["captured"]) == fx_graphs
    assert sum(outcome.value["captured"].values()) == sizes
    assert outcome.count("capture begin") == sizes + fx_graphs  # one empty capture makes an FX graph's pool


def test_the_devices_own_timeout_is_set_before_anything_is_captured(served):
    events = [event for event in served[1].events if event.startswith(("operation timeout", "capture begin"))]
    first_capture = next(place for place, event in enumerate(events) if event.startswith("capture"))
    assert events[first_capture - 1] == "operation timeout 60000000 us"  # after torch_npu's own


def test_every_step_is_one_replay(served):
    _, outcome = served
    assert [[line.partition(" ")[0] for line in step] for step in outcome.value["steps"]] == [["replay"]] * 7
    assert outcome.value["served"] == outcome.value["captured"]
    assert outcome.value["shapes"] == [(num_tokens, serving.HIDDEN) for num_tokens in SERVED]


def test_equal_sizes_replay_the_same_graph(served):
    _, outcome = served
    graph_of = [step[0].split(" ")[1] for step in outcome.value["steps"]]
    dispatched = [4, 2, 2, 8, 8, 2, 2] if served[0] else [8, 2, 2, 8, 8, 2, 2]
    assert len(set(zip(dispatched, graph_of, strict=True))) == len(set(dispatched))


def test_nothing_captures_around_npugraph_ex(served):
    _, outcome = served
    capturing = False
    for line in outcome.events:
        capturing = line.startswith("capture begin") or (capturing and not line.startswith("capture end"))
        assert not (capturing and line.startswith("replay"))


def test_slices_and_weights_are_read_in_place(served):
    dynamic, outcome = served
    assert outcome.value["read_by_address"] == [outcome.value["weights"]] * len(SIZES[dynamic])


def test_only_the_rows_are_copied_and_without_clone_input_not_even_they(served):
    dynamic, outcome = served
    assert sorted(outcome.value["inputs"]) == [(size, serving.HIDDEN) for size in SIZES[dynamic]]
    read_from_runner = outcome.value["input_addresses"] == {outcome.value["runners_address"]}
    assert read_from_runner is not dynamic
