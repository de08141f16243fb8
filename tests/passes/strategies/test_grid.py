"""Grid sharding, and both ways to add partial sums: right on every rank, and wrong where sabotaged."""

import pytest
import torch
from torch import nn

from oproj_pass.errors import ConfigError
from oproj_pass.passes import shard_of
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.traffic import TokenSizes, best_split, sent_nbytes
from tests.support import quantised
from tests.support.layouts import Groups, SquareBlocks, layout
from tests.support.quantised import Model, model
from tests.support.strategies import module_of, rows, sharded

c10d, aten = torch.ops._c10d_functional, torch.ops.aten
EPS = torch.finfo(torch.bfloat16).eps
SCHEMES = [
    quantised.W8A8Dynamic, quantised.W8A8Tensor, quantised.W8A8Static, quantised.W8A8Packed, quantised.IntMM,
    quantised.ScaledTensor, quantised.ScaledStatic, quantised.ScaledRow, nn.Linear,
]  # fmt: skip


@pytest.mark.parametrize("kind", SCHEMES)
@pytest.mark.parametrize("reduce", ["scatter", "exchange"])
def test_keeps_every_ranks_result(kind, reduce):
    outcome = sharded(module_of(kind), rows(4, 3, 64), "grid", mesh=(2, 2), reduce=reduce)
    assert outcome.error < 4 * EPS


@pytest.mark.parametrize("kind", [Groups, SquareBlocks])
def test_keeps_every_ranks_result_for_scales_that_lie_along_both_axes(kind):
    module, xs = Model(layout(kind, hidden=64)), rows(4, 3, 64, dtype=torch.float32)
    outcome = sharded(module, xs, "grid", mesh=(2, 2))
    assert outcome.error < 1e-5
    (region,) = outcome.record.regions
    assert all(len(cut.along) == 2 for cut in region.by_node.values() if "bias" not in cut.along[0][1].path)


@pytest.mark.parametrize("mesh", [(4, 2), (2, 4)])
def test_keeps_every_ranks_result_for_any_split(mesh):
    assert sharded(module_of(nn.Linear), rows(8, 2, 64), "grid", mesh=mesh).error < 4 * EPS


@pytest.mark.parametrize("options", [{"capacity": 5}, {"reduce_dtype": torch.float32}, {"dynamic": True}])
@pytest.mark.parametrize("reduce", ["scatter", "exchange"])
def test_obeys_the_exchanges_options(reduce, options):
    outcome = sharded(module_of(nn.Linear), rows(4, 3, 64), "grid", mesh=(2, 2), reduce=reduce, **options)
    assert outcome.error < 4 * EPS


def without(target, replacement):
    """Cut a collective out, and put in its place what a rank has by itself."""

    def edit(gm):
        for node in gm.graph.find_nodes(op="call_function", target=target):
            with gm.graph.inserting_before(node):
                mine = replacement(gm.graph, node)
            (wait,) = node.users
            wait.replace_all_uses_with(mine)

    return edit


SABOTAGES = {
    "own rows for all": {
        "edit": without(
            c10d.all_gather_into_tensor.default,
            lambda graph, node: graph.call_function(aten.cat.default, ([node.args[0]] * node.args[1],)),
        )
    },
    "no exchange": {"edit": without(c10d.all_to_all_single.default, lambda graph, node: node.args[0])},
    "no sum": {
        "edit": without(
            c10d.reduce_scatter_tensor.default,
            lambda graph, node: graph.call_function(aten.slice.Tensor, (node.args[0], 0, 0, 6)),
        )
    },
    "next rank's part": {
        "slice_of": lambda cut, full, rank, size: shard_of(cut, full, (rank + 1) % size, size)
    },
}


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_a_sabotaged_grid_shows(sabotage):
    """The negative control of every test above."""
    module = module_of(nn.Linear)
    assert sharded(module, rows(4, 3, 64), "grid", mesh=(2, 2), **SABOTAGES[sabotage]).error > 1e-2


def test_gathers_over_the_one_dimension_and_sums_over_the_other():
    outcome = sharded(module_of(nn.Linear), rows(4, 3, 64), "grid", mesh=(2, 2))
    (region,) = outcome.record.regions
    (_, along_k), (_, along_h) = region.config.mesh
    over = {node.target: node.args[-1] for node in region.nodes}
    assert over[c10d.all_gather_into_tensor.default] == along_h.group_name
    assert over[c10d.reduce_scatter_tensor.default] == along_k.group_name


def test_refuses_an_integer_bias_in_units_of_scales_that_other_ranks_have():
    with pytest.raises(ConfigError, match="int32 bias in units of scales of rows that other ranks sum"):
        sharded(model(quantised.W8A8Smooth, hidden=32), rows(4, 3, 64), "grid", mesh=(2, 2))


@pytest.mark.parametrize("kind", [quantised.W8A8Static, nn.Linear])
def test_a_sum_in_rank_order_replaces_the_reduce_scatter(kind):
    plain = sharded(module_of(kind), rows(4, 3, 64), "row", reduce="exchange")
    assert plain.error < 4 * EPS
    (region,) = plain.record.regions
    targets = [node.target for node in region.reduce]
    assert c10d.reduce_scatter_tensor.default not in targets
    assert targets.count(aten.add.Tensor) == 3
    (sent,) = (node for node in region.reduce if node.target is c10d.all_to_all_single.default)
    assert value_of(sent.args[0]).dtype == torch.bfloat16


def test_a_sum_without_one_peers_part_shows():
    def drop(gm):
        add = next(node for node in gm.graph.nodes if node.target is aten.select.int and node.args[2] == 1)
        add.update_arg(2, 0)

    outcome = sharded(module_of(nn.Linear), rows(4, 3, 64), "row", reduce="exchange", edit=drop)
    assert outcome.error > 1e-2


def test_sends_the_fewest_bytes_for_deepseek_between_row_and_column():
    """K = 16384 int8 activations, H = 7168, sums in two bytes, N = 8."""
    token = TokenSizes(16384, 7168, input_itemsize=1, sum_itemsize=2, product_itemsize=2)
    by_split = {a: sent_nbytes(token, a, 8 // a) for a in (8, 4, 2, 1)}
    assert by_split == {8: 114_688, 4: 78_848, 2: 82_432, 1: 127_232}
    assert best_split(token, 8) == (4, 2)


def test_counts_what_leaves_a_rank_as_the_graphs_tensors_do():
    outcome = sharded(module_of(nn.Linear), rows(4, 3, 64), "grid", mesh=(2, 2))
    (region,) = outcome.record.regions
    left = 0
    for node in region.nodes:
        if node.target in (c10d.all_to_all_single.default, c10d.reduce_scatter_tensor.default):
            left += value_of(node.args[0]).nbytes // 2
        elif node.target is c10d.all_gather_into_tensor.default:
            left += value_of(node.args[0]).nbytes
    token = TokenSizes(64, 32, input_itemsize=2, sum_itemsize=2, product_itemsize=2)
    assert left == 3 * sent_nbytes(token, 2, 2)
