"""MLPs, heads and embeddings: each role's strategy keeps every rank's result; each sabotage must show."""

import operator

import pytest
import torch
from torch import nn

from oproj_pass.errors import ConfigError
from oproj_pass.passes import ROLES, Exchange, ShardOProj, run_passes, shard_of
from oproj_pass.passes.graph.collectives import is_collective
from tests.support import quantised
from tests.support.fake import fake_world
from tests.support.family import HIDDEN, INTERMEDIATE, MLPS, VOCABULARY, ids, language_model
from tests.support.strategies import ONE_ROUNDING, family_plan, next_ranks_part, sharded

c10d, aten = torch.ops._c10d_functional, torch.ops.aten


def outcome(roles, size=2, shape=(2, 3), mlp="gated", **options):
    return sharded(language_model(mlp), [ids(*shape) for _ in range(size)], roles=roles, **options)


@pytest.mark.parametrize("size", [2, 4])
def test_keeps_every_ranks_result_with_all_roles_at_once(size):
    assert outcome([*ROLES], size).error < 1e-5


@pytest.mark.parametrize("shape", [(1, 1), (5, 3)])
@pytest.mark.parametrize("mlp", MLPS)
def test_keeps_every_ranks_result_for_every_kind_of_mlp(mlp, shape):
    assert outcome(["mlp"], mlp=mlp, shape=shape).error < 1e-5


def test_looks_up_exactly_what_the_whole_table_holds():
    model = language_model().embed
    assert sharded(model, [ids(2, 3), ids(2, 3)], roles=["embedding"]).is_equal


@pytest.mark.parametrize("unknown", [VOCABULARY, VOCABULARY + 2, -1])
def test_an_id_outside_of_the_vocabulary_raises_on_every_rank(unknown):
    """Of 97 ids over 4 ranks the last part has three rows of padding, which are no ids either."""
    brought = [ids(2, 3) for _ in range(4)]
    brought[1][0, 0] = unknown
    with pytest.raises(IndexError):
        sharded(language_model().embed, brought, roles=["embedding"])


def without(target, part):
    """Replace each collective by what a rank has without it."""

    def edit(gm):
        for node in gm.graph.find_nodes(op="call_function", target=target):
            with gm.graph.inserting_before(node):
                mine = part(gm.graph, node)
            node.replace_all_uses_with(mine)

    return edit


def copies(graph, node):
    return graph.call_function(torch.cat, ([node.args[0]] * node.args[1],))


def first_part(graph, node):
    parts = graph.call_function(torch.chunk, (node.args[0], node.args[2]))
    return graph.call_function(operator.getitem, (parts, 0))


def wrong_part_of_the_last_gemm(tensor, full, rank, size):
    """All parts of an MLP alike would only rename the ranks."""
    return (next_ranks_part if tensor.dim == 1 else shard_of)(tensor, full, rank, size)


def halves_side_by_side(tensor, full, rank, size):
    """The cut of a fused gate and up that takes them for one axis."""
    return full.chunk(size, tensor.dim)[rank].clone()


def with_padding(gm):
    """Cut the logits to the vocabulary before the ranks' parts are put side by side."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.slice.Tensor):
        node.args = (*node.args[:2], 1, node.args[3] + 1)


def without_mask(gm):
    for node in gm.graph.find_nodes(op="call_function", target=aten.masked_fill.Scalar):
        if node.args[2] == 0 and node.args[0].target is aten.embedding.default:
            node.replace_all_uses_with(node.args[0])


SABOTAGES = {
    "no gather": (["mlp"], {"edit": without(c10d.all_gather_into_tensor.default, copies)}),
    "no sum": (["mlp"], {"edit": without(c10d.reduce_scatter_tensor.default, first_part)}),
    "wrong part of an MLP": (["mlp"], {"slice_of": wrong_part_of_the_last_gemm}),
    "fused gate and up as one": (["mlp"], {"slice_of": halves_side_by_side, "mlp": "fused"}),
    "no gather before the head": (["lmhead"], {"edit": without(c10d.all_gather_into_tensor.default, copies)}),
    "wrong part of the head": (["lmhead"], {"slice_of": next_ranks_part}),
    "logits one to the right": (["lmhead"], {"edit": with_padding}),
    "no mask": (["embedding"], {"edit": without_mask}),
    "wrong part of the table": (["embedding"], {"slice_of": next_ranks_part}),
}


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_parity_fails_when_the_exchange_is_sabotaged(sabotage):
    """The negative control of every test above."""
    roles, options = SABOTAGES[sabotage]
    assert outcome(roles, **options).error > 1e-3


def rewritten(rank, roles=tuple(ROLES), size=4, mlp="gated", **exchange):
    """The code of the rewritten graph, its collectives by path, on one rank."""
    program = torch.export.export(language_model(mlp), (ids(2, 3),))
    names = program.graph_signature.inputs_to_parameters
    with fake_world(size, rank) as group:
        over = Exchange(size, group, **exchange)
        plan = family_plan(program.graph_module, roles, names, over)
        run_passes(program.graph_module, (), [ShardOProj(plan, parameters=names)])
    nodes = [node for node in program.graph_module.graph.nodes if is_collective(node)]
    return program.graph_module.code, [node.target.name().rpartition("::")[2] for node in nodes]


def test_the_graph_is_the_same_on_every_rank():
    assert rewritten(0) == rewritten(3)


def test_gathers_the_rows_of_an_mlp_once():
    _, collectives = rewritten(0, ["mlp"])
    assert collectives == ["all_gather_into_tensor", "reduce_scatter_tensor"]


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("lmhead", ["all_gather_into_tensor", "all_to_all_single"]),
        ("embedding", ["all_to_all_single", "reduce_scatter_tensor"]),
    ],
)
def test_exchanges_twice_for_a_head_and_for_an_embedding(role, expected):
    assert rewritten(0, [role])[1] == expected


def test_refuses_an_intermediate_that_does_not_fall_into_equal_parts():
    message = f"mlp: H = {INTERMEDIATE} output features cannot be split over mlp_tensor_parallel_size = 5"
    with pytest.raises(ConfigError, match=message):
        rewritten(0, ["mlp"], size=5)


def test_fills_every_exchange_up_to_a_capacity():
    assert outcome([*ROLES], shape=(3,), capacity=8).error < 1e-5


class QuantisedMlp(torch.nn.Module):
    """Every layer of it quantises its own input; ``kind`` of the first ones, and of the last."""

    def __init__(self, kind, fused=False):
        super().__init__()
        self.fused = fused
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.ups = torch.nn.ModuleList(kind(64, 128 if fused else 64) for _ in range(2 - fused))
            self.down = kind(64, 32)

    def forward(self, x):
        gate, up = self.ups[0](x).chunk(2, -1) if self.fused else (up(x) for up in self.ups)
        return self.down(torch.nn.functional.silu(gate) * up)


QUANTISED = [quantised.W8A8Dynamic, quantised.W8A8Static, quantised.ScaledRow]


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "apart"])
@pytest.mark.parametrize("kind", QUANTISED)
def test_keeps_every_ranks_result_for_a_quantised_mlp(kind, fused):
    """As far as rounding: a rank quantises its part of the intermediate features by a scale of its own."""
    if kind is quantised.W8A8Static and not fused:
        pytest.skip("two layers with a stored input scale each do not multiply the same rows")
    xs = [torch.randn(3, 64, dtype=torch.bfloat16) for _ in range(2)]
    xs[0] *= 100
    module = QuantisedMlp(kind, fused).eval()
    assert sharded(module, xs, roles=["mlp"]).error < 0.05
    assert sharded(module, xs, roles=["mlp"], slice_of=wrong_part_of_the_last_gemm).error > 0.1


class QuantisedHead(torch.nn.Module):
    """A table, and a head whose layer quantises the rows that it looked up."""

    def __init__(self, kind, vocabulary):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.embed = torch.nn.Embedding(vocabulary, 64, dtype=torch.bfloat16)
            self.head = kind(64, vocabulary)

    def forward(self, ids):
        return self.head(self.embed(ids).flatten(0, -2))


@pytest.mark.parametrize("vocabulary", [VOCABULARY, 96])
@pytest.mark.parametrize("kind", QUANTISED)
def test_keeps_every_logit_of_a_quantised_head(kind, vocabulary):
    module, brought = QuantisedHead(kind, vocabulary).eval(), [ids(2, 3) % vocabulary for _ in range(2)]
    assert sharded(module, brought, roles=["lmhead"]).error <= ONE_ROUNDING
    assert sharded(module, brought, roles=["lmhead"], slice_of=next_ranks_part).error > 0.1


class Straight(nn.Module):
    """An embedding that a head, or an MLP, reads as it is: sites of different roles, one behind the other."""

    def __init__(self, reader):
        super().__init__()
        self.embed, self.reader = nn.Embedding(VOCABULARY, HIDDEN), reader

    def forward(self, ids):
        return self.reader(self.embed(ids))


@pytest.mark.parametrize(("role", "reader"), [("lmhead", None), ("mlp", "gated"), ("mlp", "fused")])
def test_a_site_may_read_what_another_roles_site_makes(role, reader):
    torch.manual_seed(0)
    reader = MLPS[reader]() if reader else nn.Linear(HIDDEN, VOCABULARY, bias=False)
    model = Straight(reader).eval().requires_grad_(False)
    found = sharded(model, [ids(2, 3) for _ in range(2)], roles=[role, "embedding"])
    assert found.error < 1e-5
