"""Which GEMMs are an MLP's: every way to write one is taken, and what mixes its features is named."""

import pytest
import torch
import torch.nn.functional as F

from oproj_pass.passes import Globs, Mlp, find_roles
from tests.support import gated_kernels  # noqa: F401  (registers what engines gate with)
from tests.support.traced import names_of, traced

HIDDEN, INTER = 16, 24
X = torch.randn(2, 3, HIDDEN)
GATE, UP, DOWN = torch.randn(INTER, HIDDEN), torch.randn(INTER, HIDDEN), torch.randn(HIDDEN, INTER)
FUSED = torch.cat([GATE, UP])


def search_mlps(function, *stored, activations=(X,)):
    gm = traced(function, *activations, *stored)
    sites, misses = find_roles(gm, {"mlp": Globs()}, parameters=names_of(gm, stored))
    return sites, [miss.reason for miss in misses]


def gated(between):
    """An MLP of three GEMMs with ``between`` the first two and the last."""
    return lambda x, gate, up, down: x + F.linear(between(F.linear(x, gate), F.linear(x, up)), down)


def fused(between):
    return lambda x, gate_up, down: x + F.linear(between(F.linear(x, gate_up)), down)


def plain(between):
    return lambda x, up, down: x + F.linear(between(F.linear(x, up)), down)


def silu_and_mul(parts):
    return F.silu(parts[0]) * parts[1]


GATED = {
    "SwiGLU": lambda gate, up: F.silu(gate) * up,
    "the other order": lambda gate, up: up * F.gelu(gate, approximate="tanh"),
    "clamped": lambda gate, up: (up.clamp(-7, 7) + 1) * gate.clamp(max=7) * torch.sigmoid(1.7 * gate),
    "bilinear": lambda gate, up: gate * up,
    "in float32": lambda gate, up: (F.silu(gate.float()) * up.float()).to(X.dtype),
    "in place": lambda gate, up: F.silu(gate, inplace=True).mul_(up),
    "no dropout": lambda gate, up: F.dropout(F.relu(gate), 0.5, False) * up,
}


@pytest.mark.parametrize("name", GATED)
def test_takes_gate_and_up(name):
    (site,), misses = search_mlps(gated(GATED[name]), GATE, UP, DOWN)
    assert misses == []
    assert [up.weight.node.name for up in site.ups] == ["gate", "up"]
    assert (site.intermediate, site.segments, site.literals) == (INTER, 1, ())


def into_a_buffer(y):
    out = y.new_empty((2, 3, INTER))
    torch.ops._C.silu_and_mul(out, y)
    return out


FUSED_WAYS = {
    "Ascend's operator": lambda y: torch.ops.npu.npu_swiglu(y),
    "vLLM's operator": into_a_buffer,
    "chunk": lambda y: silu_and_mul(y.chunk(2, -1)),
    "split": lambda y: silu_and_mul(y.split(INTER, -1)),
    "split by sizes": lambda y: silu_and_mul(torch.split(y, [INTER, INTER], dim=2)),
    "slices": lambda y: F.silu(y[..., :INTER]) * y[..., INTER:],
    "narrow": lambda y: F.silu(y.narrow(-1, 0, INTER)) * y.narrow(-1, INTER, INTER),
    "unflatten": lambda y: silu_and_mul(y.unflatten(-1, (2, INTER)).unbind(-2)),
    "view": lambda y: (lambda p: F.silu(p[..., 0, :]) * p[..., 1, :])(y.view(2, 3, 2, INTER)),
    "select": lambda y: (lambda p: F.silu(p.select(-2, 0)) * p.select(2, 1))(y.view(2, 3, 2, INTER)),
    "glu": lambda y: F.glu(y, -1),
    "activated before": lambda y: (lambda parts: parts[0] * parts[1])(F.relu(y).chunk(2, -1)),
    "tokens in one row": lambda y: F.glu(y.reshape(-1, 2 * INTER)).view(2, 3, INTER),
}


@pytest.mark.parametrize("name", FUSED_WAYS)
def test_takes_a_fused_gate_and_up_in_two_segments(name):
    (site,), misses = search_mlps(fused(FUSED_WAYS[name]), FUSED, DOWN)
    assert misses == []
    assert (site.intermediate, site.segments) == (INTER, 2)


INTERLEAVED = {
    "steps": lambda y: F.silu(y[..., ::2]) * y[..., 1::2],
    "pairs": lambda y: (lambda p: F.silu(p[..., 0]) * p[..., 1])(y.view(2, 3, INTER, 2)),
    "unbound pairs": lambda y: silu_and_mul(y.unflatten(-1, (INTER, 2)).unbind(-1)),
}


@pytest.mark.parametrize("name", INTERLEAVED)
def test_takes_pairs_of_gate_and_up_as_they_lie(name):
    (site,), misses = search_mlps(fused(INTERLEAVED[name]), FUSED, DOWN)
    assert misses == []
    assert (site.intermediate, site.segments) == (INTER, 1)


@pytest.mark.parametrize(
    "activation", [F.relu, F.gelu, F.mish, torch.tanh, F.hardswish, lambda x: F.relu(x) ** 2, torch.square]
)
def test_takes_a_plain_mlp_with_any_activation(activation):
    (site,), misses = search_mlps(plain(activation), UP, DOWN)
    assert misses == []
    assert isinstance(site, Mlp)
    assert len(site.ups) == 1


MIXING = {
    "norm": (lambda y: F.rms_norm(F.silu(y), (INTER,)), "mixes intermediate features in `rms_norm`"),
    "softmax": (lambda y: F.relu(y).softmax(-1), "mixes intermediate features in `softmax`"),
    "mean": (lambda y: F.relu(y) - y.mean(-1, keepdim=True), "mixes intermediate features in `mean`"),
    "largest": (lambda y: F.relu(y) / y.amax(-1, keepdim=True), "mixes intermediate features in `amax`"),
    "flipped": (lambda y: F.relu(y).transpose(0, 1).transpose(0, 1), "mixes intermediate features"),
    "heads": (lambda y: F.relu(y.view(2, 3, 4, 6)).flatten(-2), "takes its intermediate features apart"),
    "joined": (lambda y: F.relu(torch.cat([y[..., 12:], y[..., :12]], -1)), "intermediate features"),
    "dropped": (lambda y: F.dropout(F.relu(y), 0.5, True), "drops intermediate features at random"),
    "rows": (lambda y: F.relu(y[:1]).expand(2, 3, INTER), "takes its intermediate features apart"),
}


@pytest.mark.parametrize("name", MIXING)
def test_names_what_mixes_intermediate_features(name):
    between, reason = MIXING[name]
    sites, (found,) = search_mlps(plain(between), UP, DOWN)
    assert sites == []
    assert reason in found


def test_names_a_second_reader_of_the_intermediate():
    def function(x, up, down):
        y = F.relu(F.linear(x, up))
        return x + F.linear(y, down) + y.sum()

    sites, (reason,) = search_mlps(function, UP, DOWN)
    assert sites == []
    assert reason == "has an intermediate result that is also read by `sum_1` (`relu`)"


def test_names_an_intermediate_that_leaves_the_graph():
    def function(x, up, down):
        y = F.linear(x, up)
        return F.linear(F.relu(y), down), y

    sites, (reason,) = search_mlps(function, UP, DOWN)
    assert sites == []
    assert reason == "has an intermediate result that leaves the graph (`linear`)"


def test_names_gemms_of_different_inputs():
    def function(x, z, gate, up, down):
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(z, up), down)

    sites, (reason,) = search_mlps(function, GATE, UP, DOWN, activations=(X, X))
    assert sites == []
    assert reason == "multiplies results of GEMMs that read different inputs"


def test_names_another_factor():
    def function(x, z, up, down):
        return F.linear(F.silu(F.linear(x, up)) * z, down)

    sites, (reason,) = search_mlps(function, UP, DOWN, activations=(X, torch.randn(2, 3, INTER)))
    assert sites == []
    assert reason == "combines its intermediate with `z`, which its GEMMs do not make"


def test_leaves_factors_without_an_activation_between_alone():
    assert search_mlps(plain(lambda y: 2 * y + 1), UP, DOWN) == ([], [])
    assert search_mlps(plain(lambda y: F.rms_norm(y, (INTER,))), UP, DOWN) == ([], [])
