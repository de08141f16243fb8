"""A projection in two steps, cut by group: every rank's result stays; each sabotage must show."""

import pytest
import torch
from torch import nn

from oproj_pass.errors import ConfigError
from oproj_pass.passes import Exchange, ShardOProj, run_passes, shard_of
from oproj_pass.passes.graph.collectives import is_collective
from tests.support import quantised
from tests.support.fake import fake_world
from tests.support.grouped import (
    GROUPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    RANK,
    SPELLINGS,
    DequantisedGroups,
    GroupedAttention,
    heads_of,
)
from tests.support.strategies import family_plan, next_ranks_part, sharded

c10d = torch.ops._c10d_functional


def outcome(size=2, shape=(2, 3), model=None, **options):
    """Rank 0 brings far larger rows than the others."""
    xs = [heads_of(*shape) * (10 if rank == 0 else 1) for rank in range(size)]
    return sharded(model or GroupedAttention(), xs, roles=["oproj"], **options)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_keeps_every_ranks_result_in_every_spelling(spelling, size):
    assert outcome(size, model=GroupedAttention(spelling)).error < 1e-5


@pytest.mark.parametrize(
    "options",
    [{"dynamic": True}, {"capacity": 16}, {"reduce": "exchange"}, {"reduce_dtype": torch.float64}],
    ids=str,
)
def test_keeps_every_ranks_result_under_every_kind_of_exchange(options):
    assert outcome(**options).error < 1e-5


def softened(y):
    return nn.functional.silu(y) * 2


def relaid(y):
    """With sizes of features and of rows that the graph states."""
    return softened(y.view(y.shape[0] * y.shape[1], GROUPS * RANK)).view(*y.shape)


@pytest.mark.parametrize("between", [softened, relaid])
def test_keeps_what_is_elementwise_between_the_two_steps(between):
    assert outcome(model=GroupedAttention(between=between)).error < 1e-5


def test_keeps_every_ranks_result_for_dequantised_groups():
    assert outcome(4, model=DequantisedGroups()).error < 1e-5
    assert outcome(4, model=DequantisedGroups(), slice_of=wrong_part_of_the_last_gemm).error > 0.1


@pytest.mark.parametrize("kind", [quantised.W8A8Dynamic, quantised.W8A8Static, quantised.ScaledRow])
def test_keeps_every_ranks_result_for_a_quantised_last_weight(kind):
    """As far as rounding: a rank quantises the features of its groups by a scale of its own."""
    xs = [heads_of(1, 3, dtype=torch.bfloat16) for _ in range(2)]
    model = GroupedAttention("bmm", kind, lambda y: y.flatten(0, 1), torch.bfloat16)
    assert sharded(model, xs, roles=["oproj"]).error < 0.03
    assert sharded(model, xs, roles=["oproj"], slice_of=next_ranks_part_of_the_last).error > 0.035


def wrong_part_of_the_last_gemm(tensor, full, rank, size):
    """All parts alike would only rename the groups."""
    return (next_ranks_part if full.shape[0] == HIDDEN else shard_of)(tensor, full, rank, size)


def next_ranks_part_of_the_last(tensor, full, rank, size):
    return (next_ranks_part if HIDDEN in full.shape else shard_of)(tensor, full, rank, size)


def without_exchange(gm):
    for node in gm.graph.find_nodes(op="call_function", target=c10d.all_to_all_single.default):
        node.replace_all_uses_with(node.args[0])


def without_sum(gm):
    for node in gm.graph.find_nodes(op="call_function", target=c10d.reduce_scatter_tensor.default):
        with gm.graph.inserting_before(node):
            mine = gm.graph.call_function(torch.ops.aten.slice.Tensor, (node.args[0], 0, 0, 6))
        node.replace_all_uses_with(mine)


SABOTAGES = {
    "no exchange": {"edit": without_exchange},
    "no sum": {"edit": without_sum},
    "columns of other groups": {"slice_of": wrong_part_of_the_last_gemm},
}


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_parity_fails_when_the_exchange_is_sabotaged(sabotage):
    """The negative control of every test above."""
    assert outcome(**SABOTAGES[sabotage]).error > 1e-2


def rewritten(rank, size=4):
    """The code of the rewritten graph, its collectives and its stored shapes, on one rank."""
    program = torch.export.export(GroupedAttention(), (heads_of(2, 3),))
    names = program.graph_signature.inputs_to_parameters
    with fake_world(size, rank) as group:
        plan = family_plan(program.graph_module, ["oproj"], names, Exchange(size, group))
        run_passes(program.graph_module, (), [ShardOProj(plan, parameters=names)])
    nodes = program.graph_module.graph.nodes
    collectives = [node for node in nodes if is_collective(node)]
    stored = {names[node.name]: tuple(node.meta["val"].shape) for node in nodes if node.name in names}
    return program.graph_module.code, collectives, stored


def test_exchanges_heads_once_and_sums_once_and_keeps_a_ranks_groups_of_both_weights():
    code, collectives, stored = rewritten(0)
    assert code == rewritten(3)[0]
    assert [node.target for node in collectives] == [
        c10d.all_to_all_single.default, c10d.reduce_scatter_tensor.default,
    ]  # fmt: skip
    assert collectives[0].meta["val"].numel() == 2 * 3 * HEADS * HEAD_DIM
    features = GROUPS * RANK // 4
    assert stored["wo_a.weight"] == (features, HEADS * HEAD_DIM // GROUPS)
    assert stored["wo_b.weight"] == (HIDDEN, features)


@pytest.mark.parametrize("size", [3, 8])
def test_refuses_ranks_that_would_share_a_group(size):
    message = f"wo_b: H = 64 output features cannot be split over oproj_tensor_parallel_size = {size} ranks"
    with pytest.raises(ConfigError, match=message) as refusal:
        rewritten(0, size)
    assert "16 consecutive features share a scale, a packed word or a group" in str(refusal.value)
    assert str(refusal.value).endswith("Sizes that divide this H: 2, 4.")


def test_refuses_a_capacity_where_a_row_count_is_stated():
    with pytest.raises(ConfigError, match="states its row count"):
        outcome(model=GroupedAttention(between=relaid), capacity=16)
