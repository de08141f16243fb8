"""Several states of a graph side by side: nodes keep their identity through them, equal layers are one."""

import json
from dataclasses import replace

import pytest

from oproj_pass.errors import ConfigError
from oproj_pass.passes.diff import GraphSnapshot, compare_states
from oproj_pass.passes.diff.graph_snapshot import NodeSnapshot, Ref
from tests.support.page_tags import Tags

LAYERS = 61
NAMES = ("before", "1 shard", "2 stream")


def call(name, target, *inputs, shape=(4, 8), path=""):
    args = tuple(part for x in inputs for part in (Ref(x), ", "))[:-1]
    return NodeSnapshot(name, "call_function", target, args, shape, "bfloat16", path)


def states(layers, *, odd=()):
    """A chain of projections; a step that shards them, one that renames all and puts a wait behind each."""
    plain, sharded, waiting = [], [], []
    for nodes, is_sharded, prefix in ((plain, False, ""), (sharded, True, ""), (waiting, True, "new_")):
        nodes.append(NodeSnapshot(f"{prefix}x", "placeholder", "x", (), (4, 8), "bfloat16"))
        for i in range(layers):
            path, last = f"layers.{i}.o_proj", nodes[-1].name
            weight = NodeSnapshot(f"{prefix}w{i}", "get_attr", f"w{i}", (), (8, 8), "bfloat16", path)
            if not is_sharded or i in odd:
                nodes += [
                    weight,
                    call(f"{prefix}linear_{i}", "torch.linear", last, weight.name, path=path),
                ]
                continue
            send = call(
                f"{prefix}a2a_{i}", "torch.ops._c10d_functional.all_to_all_single.default", last, path=path
            )
            product = call(f"{prefix}linear_{i}", "torch.linear", send.name, weight.name, path=path)
            nodes += [replace(weight, shape=(8, 2)), send, product]
            if prefix:
                nodes.append(call(f"{prefix}wait_{i}", "torch.wait", product.name, path=path))
        nodes.append(NodeSnapshot(f"{prefix}output", "output", "output", (Ref(nodes[-1].name),), None, None))
    return [GraphSnapshot(tuple(nodes)) for nodes in (plain, sharded, waiting)]


def kinds_by_name(side_by_side):
    return {
        track.node.name: [change and change.kind.value for change in track.changes]
        for track in side_by_side.tracks
    }


def test_follows_each_node_through_all_states_under_any_name():
    graphs = states(2)
    compared = compare_states(graphs, NAMES)
    kinds = kinds_by_name(compared)
    assert kinds["new_w1"] == ["changed", "kept"]
    assert kinds["new_a2a_0"] == ["added", "kept"]
    assert kinds["new_wait_1"] == [None, "added"]
    weight = next(track for track in compared.tracks if track.node.name == "new_w1")
    assert [node.shape for node in weight.nodes] == [(8, 8), (8, 2), (8, 2)]
    by_state = zip(*(track.nodes for track in compared.tracks), strict=True)
    for graph, nodes in zip(graphs, by_state, strict=True):
        assert sorted(node.name for node in nodes if node) == sorted(graph.by_name)


def test_keeps_the_order_of_the_graphs():
    names = [track.node.name for track in compare_states(states(2), NAMES).tracks]
    assert [name.removeprefix("new_") for name in names] == [
        "x", "w0", "a2a_0", "linear_0", "wait_0", "w1", "a2a_1", "linear_1", "wait_1", "output",
    ]  # fmt: skip


def test_a_node_that_went_stays_away():
    plain, sharded, _ = states(1)
    compared = compare_states([sharded, plain, plain], ("a", "b", "c"))
    assert [*kinds_by_name(compared)["a2a_0"]] == ["removed", None]


def test_equal_layers_are_one_and_another_stands_out():
    groups = compare_states(states(LAYERS), NAMES).groups
    first_reads_the_input_and_last_is_the_output = [1, LAYERS - 2, 1]
    assert [len(group.blocks) for group in groups] == first_reads_the_input_and_last_is_the_output
    odd = compare_states(states(LAYERS, odd=(7,)), NAMES)
    assert not any("layers.7" in group.blocks for group in odd.groups if len(group.blocks) > 1)


def test_layers_of_other_constants_are_not_one():
    plain, sharded, waiting = states(4)
    nodes = tuple(
        replace(node, args=(*node.args, ", 3")) if node.name == "a2a_2" else node for node in sharded.nodes
    )
    groups = compare_states([plain, GraphSnapshot(nodes), waiting], NAMES).groups
    assert ["layers.2"] in [[*group.blocks] for group in groups]


def test_the_text_has_a_column_a_state():
    text = compare_states(states(3), NAMES).to_text()
    line = next(line for line in text.splitlines() if line.startswith("all_to_all_single"))
    assert "+ bf16[4, 8] moves 64 B" in line
    assert "~ bf16[4, 8] moves 64 B (inputs)" in text
    assert all(name in text for name in NAMES)
    assert (
        compare_states([states(1)[0]] * 3, NAMES).to_text() == f"no difference between {', '.join(NAMES)}\n"
    )


def test_the_page_is_small_and_takes_labels_as_text():
    graphs, label = states(LAYERS), "</script><script>alert(1)</script>"
    page = compare_states(graphs, NAMES).to_html()
    assert len(page.encode()) < 300_000
    assert Tags(page).tags == Tags(compare_states(graphs, (*NAMES[:2], label)).to_html()).tags


def test_the_summary_is_json_by_step():
    steps = json.loads(json.dumps(compare_states(states(2), NAMES).summary()))["steps"]
    assert [(step["from"], step["to"], step["added"]) for step in steps] == [
        ("before", "1 shard", 2), ("1 shard", "2 stream", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("count", [0, 1, 2])
def test_refuses_states_without_a_name_each(count):
    with pytest.raises(ConfigError, match=f"{count} states and 3 names"):
        compare_states(states(1)[:count], NAMES)
