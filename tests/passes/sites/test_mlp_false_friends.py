"""What looks like an MLP and is none keeps its own role, or has its reason."""

import pytest
import torch
import torch.nn.functional as F

from oproj_pass.passes import ROLES, Globs, find_roles
from tests.support.traced import attend, names_of, traced

HIDDEN, INTER, EXPERTS = 16, 24, 4
X = torch.randn(6, HIDDEN)
UP, DOWN, OUT = torch.randn(INTER, HIDDEN), torch.randn(HIDDEN, INTER), torch.randn(HIDDEN, HIDDEN)
ROUTER = torch.randn(EXPERTS, HIDDEN)


def search(function, *stored, activations=(X,)):
    """Weights by role, and the reasons of near misses that are no attention's."""
    gm = traced(function, *activations, *stored)
    sites, misses = find_roles(gm, dict.fromkeys(ROLES, Globs()), parameters=names_of(gm, stored))
    taken = {site.role: [on.path or on.node.name for on in site.stored] for site in sites}
    return taken, [miss.reason for miss in misses if miss.role != "oproj"]


def gated_output(x, gate, out):
    return x + F.linear(attend(x) * torch.sigmoid(F.linear(x, gate)), out)


def test_leaves_a_gated_attention_output_to_attention():
    assert search(gated_output, OUT, OUT.clone()) == ({"oproj": ["out"]}, [])


def low_rank_gate(x, first, second, out):
    gate = torch.sigmoid(F.linear(F.silu(F.linear(x, first)), second))
    return x + F.linear(attend(x) * gate, out)


def test_names_the_gate_of_an_attention_in_two_steps():
    taken, (reason,) = search(low_rank_gate, UP, DOWN, OUT)
    assert taken == {"oproj": ["out"]}
    assert "gates the result of an attention" in reason


def query_in_two_steps(x, first, second, out):
    q = F.linear(F.silu(F.linear(x, first)), second)
    return x + F.linear(F.scaled_dot_product_attention(q[None], x[None], x[None])[0], out)


def test_names_a_query_that_is_projected_in_two_steps():
    taken, (reason,) = search(query_in_two_steps, UP, DOWN, OUT)
    assert taken == {"oproj": ["out"]}
    assert "is a part of an attention" in reason


def latent_query(x, first, norm, second, out):
    """MLA's: its norm is written out, with a square, a mean and a root."""
    latent = F.linear(x, first)
    latent = latent * torch.rsqrt(latent.pow(2).mean(-1, keepdim=True) + 1e-6) * norm
    q = F.linear(latent, second)
    return x + F.linear(F.scaled_dot_product_attention(q[None], x[None], x[None])[0], out)


def test_leaves_low_rank_queries_alone():
    assert search(latent_query, UP, torch.ones(INTER), DOWN, OUT) == ({"oproj": ["out"]}, [])


def hidden_layer_behind_attention(x, up, down):
    """Its projection is missing: the first GEMM that attention reaches is a hidden layer."""
    return x + F.linear(F.relu(F.linear(attend(x), up)), down)


def test_never_takes_a_gemm_of_attention_for_an_mlps():
    taken, _ = search(hidden_layer_behind_attention, UP, DOWN)
    assert "mlp" not in taken


def test_never_takes_a_down_projection_for_attentions():
    def function(x, out, up, down):
        x = x + F.linear(attend(x), out)
        return x + F.linear(F.gelu(F.linear(x, up)), down)

    assert search(function, OUT, UP, DOWN) == ({"oproj": ["out"], "mlp": ["up", "down"]}, [])


def test_takes_an_mlp_beside_attention():
    def function(x, out, up, down):
        return x + F.linear(attend(x), out) + F.linear(F.gelu(F.linear(x, up)), down)

    assert search(function, OUT, UP, DOWN)[0] == {"oproj": ["out"], "mlp": ["up", "down"]}


def router(x, first, second):
    weights = F.linear(F.relu(F.linear(x, first)), second).softmax(-1)
    return x * weights.amax(-1, keepdim=True) + x


def test_names_a_router_in_two_steps():
    taken, (reason,) = search(router, UP, torch.randn(EXPERTS, INTER))
    assert taken == {}
    assert reason == "is a router: its result goes into `softmax`"


def dispatched(x, gate, up, down):
    expert = F.linear(x, gate).argmax(-1)
    chosen = x[expert]
    return x + F.linear(F.relu(F.linear(chosen, up)), down)


def test_names_an_expert_whose_rows_are_picked():
    taken, reasons = search(dispatched, ROUTER, UP, DOWN)
    assert taken == {}
    assert reasons == [
        "reads rows that `getitem` picks, as a routed expert does: each rank has its own number"
    ]


def batched(x, gate, up, down):
    weights = F.linear(x, gate).softmax(-1)
    y = torch.bmm(F.silu(torch.bmm(x.expand(EXPERTS, 6, HIDDEN), up)), down)
    return x + torch.einsum("te,eth->th", weights, y)


def selected(x, gate, up, down):
    """One expert after the other, of a stack of weights."""
    weights, y = F.linear(x, gate).softmax(-1), x
    for expert in range(EXPERTS):
        y = y + weights[:, expert, None] * (F.silu(x @ up[expert]) @ down[expert])
    return y


def gathered(x, gate, up, down):
    """For each token the weights of its own expert."""
    expert = F.linear(x, gate).argmax(-1)
    return x + torch.bmm(F.silu(torch.bmm(x[:, None], up[expert])), down[expert])[:, 0]


@pytest.mark.parametrize("experts", [batched, selected, gathered])
def test_names_routed_experts_with_all_their_bytes(experts):
    stored = (ROUTER, torch.randn(EXPERTS, HIDDEN, INTER), torch.randn(EXPERTS, INTER, HIDDEN))
    gm = traced(experts, X, *stored)
    sites, (miss,) = find_roles(gm, {"mlp": Globs()}, parameters=names_of(gm, stored))
    assert sites == []
    assert "holds 4 routed experts" in miss.reason
    assert (miss.role, miss.nbytes) == ("mlp", 4 * EXPERTS * 2 * HIDDEN * INTER)


@torch.library.custom_op("oproj_test::fused_experts", mutates_args=())
def fused_experts(
    x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, scores: torch.Tensor
) -> torch.Tensor:
    return x.clone()


fused_experts.register_fake(lambda x, up, down, scores: torch.empty_like(x))


def test_names_experts_of_one_operator():
    def function(x, gate, up, down):
        return x + torch.ops.oproj_test.fused_experts(x, up, down, F.linear(x, gate))

    stored = (ROUTER, torch.randn(EXPERTS, HIDDEN, INTER), torch.randn(EXPERTS, INTER, HIDDEN))
    taken, (reason,) = search(function, *stored)
    assert taken == {}
    assert "holds 4 routed experts" in reason


def test_takes_a_shared_expert_with_its_own_gate():
    def function(x, share, up, down):
        return x + torch.sigmoid(F.linear(x, share)) * F.linear(F.relu(F.linear(x, up)), down)

    taken, reasons = search(function, torch.randn(1, HIDDEN), UP, DOWN)
    assert (taken, reasons) == ({"mlp": ["up", "down"]}, [])


def test_gives_the_layers_of_a_chain_one_role_each():
    def function(x, first, second, third):
        return x + F.linear(F.relu(F.linear(F.relu(F.linear(x, first)), second)), third)

    taken, (reason,) = search(function, OUT, UP, DOWN)
    assert taken == {"mlp": ["first", "second"]}
    assert reason == "shares `linear_1` with an MLP that was taken before"


def test_takes_one_mlp_that_runs_twice_as_one_weight():
    def function(x, up, down):
        for _ in range(2):
            x = x + F.linear(F.relu(F.linear(x, up)), down)
        return x

    gm = traced(function, X, UP, DOWN)
    sites, misses = find_roles(gm, {"mlp": Globs()}, parameters=names_of(gm, (UP, DOWN)))
    assert (len(sites), misses) == (2, [])
    assert len({on.node for site in sites for on in site.stored}) == 2
