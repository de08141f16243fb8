"""A graph costs what its shapes say: inputs stay, values live to their last reader, views are free."""

import pytest

from oproj_pass.passes.diff import GraphSnapshot, diff_graphs
from oproj_pass.passes.diff.cost import cost_of
from oproj_pass.passes.diff.graph_snapshot import NodeSnapshot, Ref

KIB = 1024


def node(name, target, *args, shape=(KIB,), dtype="int8", op="call_function"):
    return NodeSnapshot(name, op, target, tuple(args), shape, dtype)


X = node("x", "x", op="placeholder")
W = node("w", "w", op="placeholder", shape=(2, KIB))
END = node("output", "output", Ref("c"), op="output", shape=None, dtype=None)


def graph(*nodes):
    return GraphSnapshot((X, W, *nodes))


def test_a_value_is_held_until_its_last_reader():
    chain = graph(node("a", "f", Ref("x")), node("b", "f", Ref("a")), node("c", "f", Ref("b")), END)
    kept = graph(node("a", "f", Ref("x")), node("b", "f", Ref("a")), node("c", "f", Ref("b"), Ref("a")), END)
    assert cost_of(chain).input_nbytes == 3 * KIB
    assert cost_of(chain).peak_nbytes == (3 + 2) * KIB
    assert cost_of(kept).peak_nbytes == (3 + 3) * KIB


def test_a_view_holds_nothing_and_keeps_what_it_views():
    viewed = graph(
        node("a", "f", Ref("x")), node("v", "view", Ref("a"), op="call_method"), node("c", "f", Ref("v")), END
    )
    assert cost_of(viewed).peak_nbytes == (3 + 2) * KIB


def test_a_reshape_of_a_transposed_value_is_a_copy():
    def shaped(first):
        nodes = (node("t", first, Ref("x")), node("r", "torch.ops.aten.reshape.default", Ref("t")))
        return graph(*nodes, node("c", "f", Ref("r")), END)

    assert cost_of(shaped("torch.ops.aten.permute.default")).peak_nbytes == (3 + 2) * KIB
    assert cost_of(shaped("torch.ops.aten.view.default")).peak_nbytes == (3 + 1) * KIB


def test_what_has_a_symbolic_size_is_left_out_and_counted():
    symbolic = graph(node("c", "f", Ref("x"), shape=("s0", 4)), END)
    assert cost_of(symbolic).unknown == 1
    assert cost_of(symbolic).peak_nbytes == 3 * KIB


def test_sharding_keeps_a_part_of_the_weight_and_moves_rows(decoder):
    cost = diff_graphs(*decoder(2, dynamic=False)).summary()["cost"]
    saved = 2 * 64 * 128 * 2 * 3 // 4
    assert cost["before"]["input_nbytes"] - cost["after"]["input_nbytes"] == saved
    assert cost["before"]["moved_nbytes"] == 0
    assert cost["after"]["moved_nbytes"] == 2 * (16 * 128 * 2 + 4 * 16 * 64 * 2)
    assert cost["before"]["us"] is None


@pytest.mark.parametrize("form", ["to_text", "to_html"])
def test_a_timer_shows_in_every_form(decoder, form):
    states = decoder(1, dynamic=False)

    def timer(node, graph):
        return 12.5 if node.target.endswith("all_to_all_single.default") else None

    timed = diff_graphs(*states, timer=timer)
    assert "12.5 us" in getattr(timed, form)()
    assert "12.5 us" not in getattr(diff_graphs(*states), form)()
    assert timed.summary()["cost"]["after"]["us"] == 12.5
