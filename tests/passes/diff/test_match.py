"""Which node is which: rules, on hand-made and on generated graphs."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import fx

from oproj_pass.passes.diff import GraphSnapshot, diff_graphs
from oproj_pass.passes.diff.changes import Kind
from oproj_pass.passes.diff.graph_snapshot import NodeSnapshot, Ref
from oproj_pass.passes.diff.match import match_nodes


def node(name, target="f", *args, op="call_function", path=""):
    parts = [part for arg in args for part in (", ", arg)][1:]
    return NodeSnapshot(name, op, target, tuple(parts), path=path)


def placeholder(name):
    return node(name, name, op="placeholder")


def graph(*nodes):
    return GraphSnapshot(nodes)


def kinds(before, after):
    return {change.node.name: change.kind.value for change in diff_graphs(before, after).changes}


@st.composite
def graphs(draw):
    """A random dataflow over a few operators and two weights, with module paths or without."""
    nodes = [placeholder("x"), placeholder("w"), placeholder("v")]
    for i in range(draw(st.integers(1, 25))):
        inputs = draw(st.lists(st.sampled_from(nodes), min_size=1, max_size=3))
        target = draw(st.sampled_from("fgh"))
        path = draw(st.sampled_from(["", "layers.0", "layers.1"]))
        nodes.append(node(f"n{i}", target, *(Ref(n.name) for n in inputs), path=path))
    return graph(*nodes, node("output", "output", Ref(nodes[-1].name), op="output"))


def renamed(snapshot, names):
    def new(name):
        return names.get(name, name)

    return GraphSnapshot(
        tuple(
            replace(
                n,
                name=n.name if n.is_input else new(n.name),
                args=tuple(Ref(new(a.name)) if isinstance(a, Ref) else a for a in n.args),
            )
            for n in snapshot.nodes
        )
    )


@given(graphs())
def test_matches_every_node_of_a_graph_with_itself(snapshot):
    assert match_nodes(snapshot, snapshot) == {n.name: n.name for n in snapshot.nodes}


@given(graphs(), st.randoms(use_true_random=False))
def test_new_names_alone_are_no_difference(snapshot, rng):
    assume(len({(n.op, n.target, n.args) for n in snapshot.nodes}) == len(snapshot.nodes))
    inner = [n.name for n in snapshot.nodes if n.op == "call_function"]
    shuffled = rng.sample(inner, len(inner))
    other = renamed(snapshot, dict(zip(inner, shuffled, strict=True)))
    diff = diff_graphs(snapshot, other)
    assert {change.kind for change in diff.changes} <= {Kind.KEPT, Kind.MOVED}


@given(graphs(), graphs())
def test_matches_one_to_one_and_lists_every_node_once(before, after):
    matching = match_nodes(before, after)
    assert len(set(matching.values())) == len(matching)
    changes = diff_graphs(before, after).changes
    assert sorted(c.before.name for c in changes if c.before) == sorted(n.name for n in before.nodes)
    assert [c.after.name for c in changes if c.after] == [n.name for n in after.nodes]


@given(graphs(), graphs())
def test_every_change_is_in_exactly_one_hunk(before, after):
    diff = diff_graphs(before, after)
    members = sorted(i for group in diff.groups for hunk in group.hunks for i in hunk.members)
    assert members == [i for i, change in enumerate(diff.changes) if change.kind is not Kind.KEPT]


@pytest.mark.parametrize("path", ["layers.0", ""], ids=["with module paths", "without"])
def test_a_name_taken_over_by_an_inserted_node_does_not_mislead(path):
    x = placeholder("x")
    before = graph(
        x, node("view", "view", Ref("x"), "8", path=path), node("relu", "relu", Ref("view"), path=path)
    )
    after = graph(
        x,
        node("view", "view", Ref("x"), "2, 4", path=path),
        node("view_1", "view", Ref("view"), "8", path=path),
        node("relu", "relu", Ref("view_1"), path=path),
    )
    assert kinds(before, after)["relu"] == "kept"
    assert sum(kind == "added" for kind in kinds(before, after).values()) == 1


@pytest.mark.parametrize("target", ["torch._C._nn.linear", "torch.ops.aten.linear.default"])
def test_a_replaced_linear_is_the_old_one_by_its_weight(target):
    x, w, v = placeholder("x"), placeholder("w"), placeholder("v")
    linear = "torch._C._nn.linear"
    before = graph(x, w, v, node("a", linear, Ref("x"), Ref("w")), node("b", linear, Ref("a"), Ref("v")))
    after = graph(
        x,
        w,
        v,
        node("pack", "reshape", Ref("x")),
        node("new", target, Ref("pack"), Ref("w")),
        node("b", linear, Ref("new"), Ref("v")),
    )
    assert match_nodes(before, after)["a"] == "new"
    assert kinds(before, after) == dict.fromkeys("xwv", "kept") | {
        "pack": "added",
        "new": "changed",
        "b": "kept",
    }


def test_a_node_whose_operator_is_replaced_in_place_is_changed():
    gm = fx.symbolic_trace(lambda x: torch.relu(x) + 1)
    other = fx.symbolic_trace(lambda x: torch.relu(x) + 1)
    (relu,) = [n for n in other.graph.nodes if n.target is torch.relu]
    relu.target = torch.tanh
    (change,) = [c for c in diff_graphs(gm, other).changes if c.kind is not Kind.KEPT]
    assert (change.kind, change.fields) == (Kind.CHANGED, ("target",))


def test_two_equal_calls_are_told_apart_by_their_users():
    x, a, b = placeholder("x"), node("a", "f", Ref("x")), node("b", "f", Ref("x"))
    before = graph(x, a, b, node("output", "output", Ref("a"), op="output"))
    after = graph(x, a, b, node("output", "output", Ref("b"), op="output"))
    assert match_nodes(before, after) == {"x": "x", "a": "b", "b": "a", "output": "output"}


def test_reordered_independent_nodes_are_moved_and_nothing_else():
    x = placeholder("x")
    f, g, h = node("f", "f", Ref("x")), node("g", "g", Ref("x")), node("h", "h", Ref("x"))
    out = node("output", "output", Ref("f"), Ref("g"), Ref("h"), op="output")
    assert kinds(graph(x, f, g, h, out), graph(x, g, h, f, out)) == {
        "x": "kept",
        "f": "moved",
        "g": "kept",
        "h": "kept",
        "output": "kept",
    }


@pytest.mark.parametrize("metadata", [True, False])
@pytest.mark.parametrize("shift", [0, 3], ids=["in place", "traced anew"])
def test_finds_the_same_rewrite_whatever_metadata_and_names_say(metadata, shift):
    before, after = chain(12, metadata), chain(12, metadata, inserted=True, shift=shift)
    summary = diff_graphs(before, after).summary()
    assert (summary["added"], summary["removed"], summary["changed"]) == (12, 0, 12)
    assert (summary["hunks"], summary["distinct_hunks"]) == (12, 1)


def test_ten_thousand_nodes_are_one_folded_hunk_on_a_small_page():
    before, after = chain(1700, True), chain(1700, True, inserted=True, shift=5)
    assert len(before.nodes) > 10_000
    diff = diff_graphs(before, after)
    assert diff.summary()["distinct_hunks"] == 1
    assert len(diff.to_html()) < 100_000


def chain(layers, metadata, *, inserted=False, shift=0):
    """Layers of view, view, linear, relu, add on a residual; `inserted`: a collective before the linear."""
    nodes, count, x = [placeholder("x")], shift, Ref("x")

    def call(layer, target, *args):
        nonlocal count
        count += 1
        path = f"layers.{layer}.attn" if metadata else ""
        nodes.append(node(f"{target}_{count}", target, *args, path=path))
        return Ref(nodes[-1].name)

    for layer in range(layers):
        nodes.append(placeholder(f"w{layer}"))
        y = call(layer, "view", call(layer, "view", x, "1"), "1")
        if inserted:
            y = call(layer, "torch.ops._c10d_functional.all_reduce.default", y)
        y = call(layer, "relu", call(layer, "linear", y, Ref(f"w{layer}")))
        x = call(layer, "add", x, y)
    return GraphSnapshot((*nodes, node("output", "output", x, op="output")))
