"""The custom pass on a projection in two steps: one site in whatever AOTAutograd makes of a spelling."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
from torch.nn.utils import parametrize

from oproj_pass.errors import ConfigError
from oproj_pass.passes.ascend import WeightShard, npu_pass
from oproj_pass.passes.graph.provenance import placeholders, value_of
from tests.passes.ascend.test_npu_pass import error_of, graph_after, nodes
from tests.support.fake import fake_world
from tests.support.grouped import GROUPS, HIDDEN, RANK, SPELLINGS, GroupedAttention, heads_of
from tests.support.models import decoder, rows

aten, c10d = torch.ops.aten, torch.ops._c10d_functional
SIZE = 2


def rewritten(model, x, **options):
    """The graph of rank 0 of two, which cuts the first half of each weight."""
    with fake_world(SIZE):
        return graph_after(npu_pass(expected_sites=1, **options), model, x)


def parts(gm):
    """The dimension that each cut weight is cut along, by the shape of the weight."""
    return {tuple(value_of(cut.args[0]).shape): cut.args[1] for cut in nodes(gm, aten.slice.Tensor)}


WO_A, WO_B = (GROUPS * RANK, 16), (HIDDEN, GROUPS * RANK)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_shards_both_weights_around_one_exchange_and_one_sum(spelling):
    gm = rewritten(GroupedAttention(spelling), heads_of(2, 3))
    assert parts(gm) == {WO_A: 0, WO_B: 1}
    (exchange,) = nodes(gm, c10d.all_to_all_single.default)
    (total,) = nodes(gm, c10d.reduce_scatter_tensor.default)
    (grouped,) = [node for node in nodes(gm, aten.bmm.default) if exchange < node < total]
    assert grouped.meta["val"].shape == (GROUPS // SIZE, SIZE * 6, RANK)
    assert total.meta["val"].shape == (6, HIDDEN)


def outputs_of(gm, model, xs, wrong=()):
    """What each rank computes: its weights begin with its own half, but for the shapes in ``wrong``."""
    dims, stored = parts(gm), {tuple(value.shape): value.detach() for value in model.parameters()}

    def of_rank(node, rank):
        shape = tuple(value_of(node).shape)
        full = stored.get(shape, xs[rank])
        is_moved = rank and shape in dims and shape not in wrong
        return full.roll(-full.shape[dims[shape]] // SIZE, dims[shape]) if is_moved else full

    arguments = [
        LocalTensor({rank: of_rank(node, rank) for rank in range(SIZE)}) for node in placeholders(gm)
    ]
    with LocalTensorMode(SIZE), torch.no_grad():
        (result,) = gm(*arguments)
    return [result._local_tensors[rank] for rank in range(SIZE)]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_keeps_every_ranks_result_and_a_wrong_half_of_one_weight_shows(spelling):
    model, xs = GroupedAttention(spelling), [heads_of(2, 3) for _ in range(SIZE)]
    expected = [model(x) for x in xs]
    with fake_world(SIZE):
        gm = graph_after(npu_pass(), model, xs[0])
        torch.testing.assert_close(outputs_of(gm, model, xs), expected)
        sabotaged = outputs_of(gm, model, xs, wrong=[WO_B])
    assert (sabotaged[0] - expected[0]).abs().max() > 1e-2


def test_takes_weights_that_are_a_ranks_groups_already():
    model = GroupedAttention()
    with fake_world(SIZE):
        for module, dim in ((model.wo_a, 0), (model.wo_b, 1)):
            shard = WeightShard(dim, dist.group.WORLD)
            parametrize.register_parametrization(module, "weight", shard, unsafe=True)
        gm = graph_after(npu_pass(expected_sites=1), model, heads_of(2, 3))
    assert parts(gm) == {}
    assert nodes(gm, torch.ops.oproj_pass.full_weight.default) == []


def test_leaves_the_groups_whole_where_a_strategy_of_one_weight_is_named():
    gm = rewritten(GroupedAttention(), heads_of(2, 3), strategy="row")
    assert parts(gm) == {WO_B: 1}


def test_refuses_groups_where_there_are_none():
    with fake_world(SIZE):
        error = error_of(npu_pass(strategy="group"), decoder(layers=1), rows(3, 32))
    assert isinstance(error, ConfigError)
    assert "layers.0.attn.o_proj: npu_pass: strategy = 'group' does not fit" in str(error)
