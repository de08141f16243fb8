"""What is refused, on which ranks, and in which words."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import oproj_pass
from oproj_pass.backend import entry as backend
from tests.support.models import Attention, decoder, rows

pytestmark = pytest.mark.distributed


def attempt(function):
    """The error's names (Dynamo's wrapper must not hide its type) and text."""
    try:
        function()
    except oproj_pass.OProjError as error:
        return [base.__name__ for base in type(error).__mro__], str(error)
    return [], ""


def compiled(model, fullgraph=True, dynamic=None, **options):
    return torch.compile(model, backend="oproj_npu", options=options, fullgraph=fullgraph, dynamic=dynamic)


def is_intact(model):
    return all(type(p) is nn.Parameter and p.untyped_storage().nbytes() for p in model.parameters())


def bad_input(build, options):
    model, x = BAD_MODELS[build]()
    with torch.inference_mode() if build != "grad" else torch.enable_grad():
        names, text = attempt(lambda: compiled(model, **options)(x))
    return names, text, build == "meta" or is_intact(model)


class NoAttention(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))


BAD_MODELS = {
    "good": lambda: (decoder(), rows(3, 32)),
    "odd K": lambda: (decoder(layers=1, heads=3, head_dim=5), rows(3, 32)),
    "no attention": lambda: (NoAttention(), rows(3, 32)),
    "grad": lambda: (decoder(layers=1).requires_grad_(True), rows(3, 32)),
    "meta": lambda: (decoder(layers=1).to("meta"), rows(3, 32).to("meta")),
}
BAD_INPUTS = [
    ("good", {"oproj_tensor_parallel_sise": 2}, "ConfigError", "did you mean 'oproj_tensor_parallel_size'"),
    ("good", {"oproj_tensor_parallel_size": -1}, "ConfigError", "oproj_tensor_parallel_size = -1"),
    ("good", {"oproj_tensor_parallel_size": True}, "ConfigError", "whole number of ranks"),
    ("good", {"oproj_tensor_parallel_size": 3}, "ConfigError", "world of 2 ranks. Sizes that do: 1, 2"),
    ("good", {"oproj_tensor_parallel_size": 4}, "ConfigError", "world of 2 ranks"),
    ("good", {"inner_backend": "inductr"}, "ConfigError", "inductor"),
    ("good", {"inner_backend": "oproj_npu"}, "ConfigError", "cannot compile its own output"),
    ("good", {"reduce_dtype": "int8"}, "ConfigError", "reduce_dtype = 'int8'"),
    ("good", {"expected_sites": 3}, "SiteMismatchError", "found 2. Found: layers.0.attn.o_proj; layers.1"),
    (
        "good",
        {"exclude": "*.1.*", "expected_sites": 2},
        "SiteMismatchError",
        "layers.1.attn.o_proj: matches an",
    ),
    ("odd K", {"oproj_tensor_parallel_size": 2}, "ConfigError", "layers.0.attn.o_proj: K = 15"),
    (
        "no attention",
        {"oproj_tensor_parallel_size": 2},
        "SiteMismatchError",
        "no attention output projection",
    ),
    ("grad", {"oproj_tensor_parallel_size": 2}, "ConfigError", "requires grad"),
    ("meta", {"oproj_tensor_parallel_size": 2}, "ConfigError", "meta device"),
]


@pytest.mark.parametrize(("build", "options", "kind", "words"), BAD_INPUTS)
def test_refuses_bad_input_and_leaves_the_model_as_it_was(two_ranks, build, options, kind, words):
    for names, text, intact in two_ranks.run(bad_input, build, options):
        assert kind in names
        assert words in text
        assert intact


def test_needs_a_process_group_for_an_explicit_size(two_ranks):
    options = {"oproj_tensor_parallel_size": 2}
    for names, text, intact in two_ranks.run(bad_input, "good", options, init=False):
        assert "ConfigError" in names
        assert "init_process_group" in text
        assert intact


def unarmed(options):
    model, reference, x = decoder(layers=1), decoder(layers=1), rows(3, 32)
    with torch.inference_mode():
        return torch.equal(compiled(model, **options)(x), reference(x)), is_intact(model)


@pytest.mark.parametrize("size", [0, 1])
def test_changes_nothing_for_size_0_and_1(two_ranks, size):
    assert two_ranks.run(unarmed, {"oproj_tensor_parallel_size": size}, init=False) == [(True, True)] * 2


def test_refuses_to_run_unsharded_where_init_process_group_was_forgotten(two_ranks):
    for names, text, intact in two_ranks.run(bad_input, "good", {}, init=False):
        assert "ConfigError" in names
        assert "the launcher says WORLD_SIZE = 2" in text
        assert intact


@torch.inference_mode()
def reported_only():
    model, reference = decoder(), decoder()
    step = compiled(model, dynamic=False, oproj_tensor_parallel_size=1, expected_sites=2)
    return all(torch.equal(step(x), reference(x)) for x in (rows(3, 32), rows(4, 32)))


def test_reports_the_same_sites_for_every_shape_at_size_1(two_ranks):
    assert two_ranks.run(reported_only) == [True, True]


@torch.inference_mode()
def sharded_after_a_report():
    model = decoder(layers=1)
    compiled(model, oproj_tensor_parallel_size=1)(rows(3, 32))
    torch._dynamo.reset()
    return attempt(lambda: compiled(model, oproj_tensor_parallel_size=2)(rows(3, 32)))


def test_never_releases_what_an_unsharded_graph_still_reads(two_ranks):
    for names, text in two_ranks.run(sharded_after_a_report):
        assert "SiteMismatchError" in names
        assert "another compiled graph reads in full" in text


class BreakAroundProjection(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention()
        self.o_proj, self.attn.o_proj = self.attn.o_proj, nn.Identity()

    def forward(self, x):
        y = self.attn(x)
        torch._dynamo.graph_break()
        return x + self.o_proj(y)


class BreakOnFlag(nn.Module):
    """Runs whole once, so that its weight is released; then a break puts the projection outside."""

    def __init__(self):
        super().__init__()
        self.attn = Attention()

    def forward(self, x, flag=False):
        q = self.attn.qkv(x)[..., :32].unflatten(-1, (4, 8)).transpose(-2, -3)
        y = F.scaled_dot_product_attention(q, q, q).transpose(-2, -3).flatten(-2)
        if flag:
            return x + torch._dynamo.disable(self.attn.o_proj)(y)
        return x + self.attn.o_proj(y)


@torch.inference_mode()
def eager_step(how):
    model, x = decoder(layers=1), rows(3, 32)
    if how == "break":
        return attempt(lambda: compiled(BreakAroundProjection().eval(), fullgraph=False)(x))
    if how == "disabled projection":
        step = compiled(BreakOnFlag().eval(), fullgraph=False)
        step(x)
        return attempt(lambda: step(x, True))
    step = compiled(model, fullgraph=False, dynamic=False)
    step(x)
    if how == "outside":
        return attempt(lambda: model(x))
    if how == "stance":
        with torch.compiler.set_stance("force_eager"):
            return attempt(lambda: step(x))
    if how == "dispatch mode":
        with torch.utils.flop_counter.FlopCounterMode(display=False):
            return attempt(lambda: step(x))
    with torch._dynamo.config.patch(recompile_limit=2):
        step(rows(4, 32))
        return attempt(lambda: step(rows(5, 32)))


EAGER_STEPS = {
    "outside": "called outside torch.compile",
    "stance": "set_stance('force_eager')",
    "dispatch mode": "FlopCounterMode is active",
    "limit": "recompile limit (2) is reached for `forward`",
    "break": "a graph break separates this attention from its projection",
    "disabled projection": "a graph break",
}


@pytest.mark.parametrize("how", EAGER_STEPS)
def test_refuses_an_eager_step_and_names_the_cause(two_ranks, how):
    for names, text in two_ranks.run(eager_step, how):
        assert "EagerStepError" in names
        assert EAGER_STEPS[how] in text


@torch.inference_mode()
def one_rank_differs(how):
    rank = torch.distributed.get_rank()
    layers = 3 if how == "graph" and rank == 1 else 2
    expected = {"expected_sites": 7} if how == "failure" and rank == 1 else {}
    model = decoder(layers=layers)
    step = compiled(model, oproj_tensor_parallel_size=2, **expected)
    return *attempt(lambda: step(rows(3, 32))), is_intact(model)


def test_raises_on_every_rank_when_graphs_differ(two_ranks):
    for names, text, intact in two_ranks.run(one_rank_differs, "graph"):
        assert "GroupMismatchError" in names
        assert "collective 5: rank 0: none; rank 1: all_to_all_single" in text
        assert intact


def test_raises_on_every_rank_when_one_cannot_shard(two_ranks):
    (peer, text, intact), (own, _, own_intact) = two_ranks.run(one_rank_differs, "failure")
    assert "GroupMismatchError" in peer
    assert "rank 1 failed: expected_sites = 7, found 2" in text
    assert "SiteMismatchError" in own
    assert intact
    assert own_intact


def late_rank():
    if torch.distributed.get_rank() == 1:
        return [], "", True
    model = decoder(layers=1)
    with torch.inference_mode():
        step = compiled(model, oproj_tensor_parallel_size=2, timeout=2)
        return *attempt(lambda: step(rows(3, 32))), is_intact(model)


def test_raises_when_a_rank_never_compiles(two_ranks):
    names, text, intact = two_ranks.run(late_rank, timeout=60)[0]
    assert "GroupMismatchError" in names
    assert "rank 0" in text
    assert intact


@torch.inference_mode()
def unequal_rows(counts):
    options = {"oproj_tensor_parallel_size": 2, "agree_on_rows": False, "check_uniform": True}
    step = compiled(decoder(layers=1), dynamic=True, **options)
    step(rows(4, 32))
    return attempt(lambda: step(rows(counts[torch.distributed.get_rank()], 32)))


def test_unequal_row_counts_never_reach_the_collective(two_ranks):
    for names, text in two_ranks.run(unequal_rows, (4, 8)):
        assert "GroupMismatchError" in names
        assert "layers.0.attn.o_proj: unequal token counts" in text
        assert "rank 0 brings 4, rank 1 brings 8" in text


def test_equal_row_counts_pass_the_check(two_ranks):
    assert two_ranks.run(unequal_rows, (8, 8)) == [([], "")] * 2


@torch.inference_mode()
def gathers_per_graph(layers):
    """How often the ranks compare graphs, for a model with or without anything to shard."""
    calls, agree = [], backend.agree_on_graph
    backend.agree_on_graph = lambda *args: calls.append(agree(*args))
    try:
        torch.compile(NoAttention() if not layers else decoder(layers=layers), backend="oproj_npu")(
            rows(3, 32)
        )
    finally:
        backend.agree_on_graph = agree
    return len(calls)


@pytest.mark.parametrize(("layers", "expected"), [(0, 0), (1, 1), (3, 1)])
def test_compares_every_graph_with_projections_exactly_once(two_ranks, layers, expected):
    assert two_ranks.run(gathers_per_graph, layers) == [expected] * 2


class Experts(nn.Module):
    """Runs its expert only where the data asks for it, after a graph break."""

    def __init__(self):
        super().__init__()
        self.attn, self.expert = Attention(), nn.Linear(32, 32)

    def forward(self, x):
        x = x + self.attn(x)
        return x + self.expert(x) if bool(x.sum() > 0) else x - 1


def experts():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Experts().requires_grad_(False)


@torch.inference_mode()
def expert_on_one_rank():
    """Rank 1 alone compiles the expert's graph; it must not wait for its peer."""
    model, reference = experts(), experts()
    step = compiled(model, fullgraph=False, oproj_tensor_parallel_size=2, timeout=3600)
    x = rows(3, 32) + (10 if torch.distributed.get_rank() else -10)
    return torch.allclose(step(x), reference(x), rtol=1e-4, atol=1e-2)


def test_a_graph_without_projections_needs_no_peer(two_ranks):
    assert two_ranks.run(expert_on_one_rank) == [True, True]


@torch.inference_mode()
def other_features():
    """Ranks whose K differs, with symbolic row counts."""
    model = decoder(layers=1, heads=4 if torch.distributed.get_rank() else 8)
    step = compiled(model, dynamic=True, oproj_tensor_parallel_size=2)
    return *attempt(lambda: step(rows(3, 32))), is_intact(model)


def test_ranks_whose_features_differ_are_refused_with_symbolic_rows_too(two_ranks):
    for names, text, intact in two_ranks.run(other_features):
        assert "GroupMismatchError" in names
        assert "rank 0: all_to_all_single float32[64*?]" in text
        assert "rank 1: all_to_all_single float32[32*?]" in text
        assert intact
