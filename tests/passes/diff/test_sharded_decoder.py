"""The main use: a decode graph before and after its output projections are sharded."""

from dataclasses import replace

import pytest
import torch.distributed as dist

from oproj_pass.passes import Exchange, ShardOProj, run_passes
from oproj_pass.passes.diff import diff_graphs

WORLD = 4

PER_LAYER = ["reshape", "transpose", "reshape", "sym_size", "floordiv", "all_to_all_single", "wait_tensor"]
PER_LAYER += ["reshape", "linear", "reduce_scatter_tensor", "wait_tensor"]


@pytest.mark.parametrize("dynamic", [True, False], ids=["symbolic", "static"])
def test_finds_nothing_but_the_rewrite(decoder, dynamic):
    before, after = decoder(3, dynamic=dynamic)
    summary = diff_graphs(before, after).summary()
    assert summary["removed"] == summary["moved"] == 0
    assert summary["changed"] == 3 * len({"weight", "linear", "residual add"})
    assert summary["added"] == 3 * (len(PER_LAYER) - 1)  # the linear is the old one, changed
    assert summary["kept"] == len(before.nodes) - summary["changed"]
    assert summary["collectives"] == {
        "all_to_all_single": {"before": 0, "after": 3},
        "reduce_scatter_tensor": {"before": 0, "after": 3},
    }


def test_folds_equal_layers_into_one_hunk_named_after_the_projection(decoder):
    (group,) = diff_graphs(*decoder(5)).groups
    assert group.paths == [f"layers.{i}.attn.o_proj" for i in range(5)]
    text = diff_graphs(*decoder(5)).to_text()
    assert "@@ layers.0.attn.o_proj @@\n# 4 more like this: layers.1-4.attn.o_proj\n" in text


def test_does_not_fold_a_layer_that_was_treated_otherwise(decoder):
    before, after = decoder(4)
    sharded = diff_graphs(before, after)
    partly = diff_graphs(before, _with_args(after, "layers.2.attn.o_proj", "'sum'", "'avg'"))
    assert len(sharded.groups) == 1
    assert [group.paths for group in partly.groups] == [
        [f"layers.{i}.attn.o_proj" for i in (0, 1, 3)],
        ["layers.2.attn.o_proj"],
    ]


def test_says_what_changed_in_weight_linear_and_residual(decoder):
    diff = diff_graphs(*decoder(1))
    changed = {change.node.target.split(".")[-1]: change.fields for change in diff.changes if change.fields}
    weight = next(target for target in changed if "o_proj" in target)
    assert changed == {weight: ("shape",), "linear": ("inputs", "args", "shape"), "add": ("inputs",)}


def test_keeps_a_symbolic_number_of_rows_symbolic(decoder):
    diff = diff_graphs(*decoder(1))
    symbol = diff.before.by_name["l_x_"].shape[0]
    payloads = {data["target"]: data["payload"] for _, data in diff.to_networkx().nodes(data=True)}
    assert isinstance(symbol, str)
    assert payloads["torch.ops._c10d_functional.reduce_scatter_tensor.default"] == f"4*{symbol}*64*2 B"
    assert f"moves 4*{symbol}*64*2 B" in diff.to_text()


def test_counts_bytes_where_every_size_is_known(decoder):
    diff = diff_graphs(*decoder(1, dynamic=False))
    rows, hidden, itemsize = 16, 64, 2
    assert f"moves {4 * rows * hidden * itemsize // 1024} KiB" in diff.to_text()


def test_shows_the_weight_before_and_after(decoder):
    text = diff_graphs(*decoder(1)).to_text()
    removed, added = (
        next(line for line in text.splitlines() if line.startswith(f"{sign} %layers.0.attn.o_proj.weight:"))
        for sign in "-+"
    )
    assert "bf16[64, 128]" in removed
    assert "bf16[64, 32]" in added


def test_includes_the_bias_that_moves_behind_the_reduction(decoder):
    before, after = decoder(2, bias=True)
    (group,) = diff_graphs(before, after).groups
    diff = diff_graphs(before, after)
    adds = [diff.changes[i] for i in group.shown.members if diff.changes[i].node.target == "torch.add"]
    assert [add.kind.value for add in adds] == ["added"]


def test_reads_the_real_pass_as_it_reads_the_one_by_hand(decoder):
    def shard(gm):
        inputs = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        run_passes(gm, inputs, [ShardOProj(Exchange(WORLD, dist.group.WORLD.group_name))])

    diff = diff_graphs(*decoder(3, shard=shard))
    (group,) = diff.groups
    assert group.paths == [f"layers.{i}.attn.o_proj" for i in range(3)]
    assert diff.summary()["removed"] == 0
    assert diff.summary()["changed"] == 3 * len({"weight", "linear", "residual add"})


def test_keeps_context_around_each_hunk(decoder):
    diff = diff_graphs(*decoder(2))
    (group,) = diff.groups
    context = {diff.changes[i].node.target for i in group.shown.context}
    assert {"reshape", "torch.nn.functional.silu"} <= context


def test_equal_graphs_have_no_difference(decoder):
    before, _ = decoder(2)
    diff = diff_graphs(before, before)
    assert diff.groups == ()
    assert diff.to_text() == f"no difference ({len(before.nodes)} nodes)\n"


def _with_args(graph, path, old, new):
    """`graph` with the text `old` replaced by `new` in the arguments of the nodes of one module."""

    def rewrite(node):
        if node.path != path:
            return node
        args = tuple(part.replace(old, new) if type(part) is str else part for part in node.args)
        return replace(node, args=args)

    changed = replace(graph, nodes=tuple(map(rewrite, graph.nodes)))
    assert changed != graph
    return changed
