"""What looks like attention and is not has no site; what is left alone has its reason."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

H, T = 32, 5
X = torch.randn(2, T, H)
MIXER = "follows a token mixer without softmax attention (convolution, scan or linear attention)"


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.out = nn.Linear(H, 4), nn.Linear(H, H)
        self.experts = nn.ModuleList(nn.Linear(H, H) for _ in range(4))

    def forward(self, x):
        weights = torch.softmax(self.gate(x), -1)
        outputs = torch.stack([expert(x) for expert in self.experts], -2)
        return x + self.out((weights.unsqueeze(-2) @ outputs).squeeze(-2))


class DepthSoftmax(nn.Module):
    """Each layer reads a softmax-weighted mix of all layers before it."""

    def __init__(self):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(3, H))
        self.up, self.down = (nn.ModuleList(nn.Linear(H, H) for _ in range(3)) for _ in range(2))

    def forward(self, x):
        states = [x]
        for query, up, down in zip(self.queries, self.up, self.down, strict=True):
            stack = torch.stack(states)
            weights = torch.softmax(torch.einsum("d,nbtd->nbt", query, F.rms_norm(stack, (H,))), 0)
            states.append(down(up(torch.einsum("nbt,nbtd->btd", weights, stack)).relu()))
        return states[-1]


class HyperConnections(nn.Module):
    """Residual streams mixed by small matrices that depend on the token."""

    def __init__(self):
        super().__init__()
        self.mix, self.up, self.down = nn.Linear(H, 16), nn.Linear(H, 48), nn.Linear(48, H)

    def forward(self, x):
        streams = x.unsqueeze(2).expand(-1, -1, 4, -1)
        for _ in range(2):
            weights = torch.softmax(self.mix(streams.mean(2)).unflatten(-1, (4, 4)), -1)
            streams = torch.einsum("btmn,btnd->btmd", weights, streams)
            streams = streams + self.down(self.up(streams.mean(2)).relu()).unsqueeze(2)
        return streams.sum(2)


class NoProjection(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(H, 48), nn.Linear(48, H)

    def forward(self, x):
        x = x + F.scaled_dot_product_attention(x, x, x)
        return x + self.down(self.up(F.layer_norm(x, (H,))).relu())


@pytest.mark.parametrize("model", [Router, DepthSoftmax, HyperConnections, NoProjection])
def test_takes_no_false_friend(model, search, search_aten):
    assert search(model(), X).sites == []
    assert all(found.sites == [] for found in search_aten(model(), X))


class LinearAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(H, H) for _ in range(4))

    def forward(self, x):
        state = F.elu(self.k(x)).mT @ self.v(x)
        return x + self.out(F.elu(self.q(x)) @ state)


class Scan(nn.Module):
    def __init__(self):
        super().__init__()
        self.decay, self.out = nn.Linear(H, H), nn.Linear(H, H)

    def forward(self, x):
        decay, state, states = self.decay(x).sigmoid(), torch.zeros(2, H), torch.zeros_like(x)
        for t in range(T):
            state = state * decay[:, t] + x[:, t]
            states[:, t] = state
        return x + self.out(states)


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv1d(H, H, 3, padding=1), nn.Linear(H, H)

    def forward(self, x):
        return x + self.out(self.conv(x.mT).mT * torch.sigmoid(x))


@pytest.mark.parametrize("mixer", [LinearAttention, Scan, Convolution])
def test_reports_other_mixers_with_their_bytes(mixer, search):
    found = search(nn.Sequential(mixer(), mixer()), X)
    assert found.sites == []
    assert found.missed == {"0.out": MIXER, "1.out": MIXER}
    assert {miss.nbytes for miss in found.misses} == {4 * H * H}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(H, H)
        self.weight = nn.Parameter(torch.randn(4, H // 4, H))

    def forward(self, x):
        return self.project(F.scaled_dot_product_attention(x, x, x))

    def project(self, y):
        return self.out(y)


class EinsumProjection(Attention):
    def project(self, y):
        return torch.einsum("bthd,hdk->btk", y.unflatten(-1, (4, -1)), self.weight)


class TensordotProjection(Attention):
    def project(self, y):
        return torch.tensordot(y.unflatten(-1, (4, -1)), self.weight, dims=2)


@pytest.mark.parametrize("attention", [EinsumProjection, TensordotProjection])
def test_reports_a_weight_in_an_unknown_form_with_its_bytes(attention, search):
    found = search(attention(), X)
    assert found.sites == []
    (miss,) = found.misses
    assert "meets a weight in a form that is not in the table of GEMM forms" in miss.reason
    assert miss.nbytes == 4 * H * H


class ComputedWeight(Attention):
    def project(self, y):
        return F.linear(y, self.out.weight.flip(1))


def test_reports_a_weight_that_is_computed_in_an_unknown_way(search):
    (miss,) = search(ComputedWeight(), X).misses
    assert "is computed by `flip`, through which K cannot be followed" in miss.reason
    assert miss.nbytes == 4 * H * H


class ScaledWeight(Attention):
    def project(self, y):
        return F.linear(y, self.out.weight * 0.5)


def test_takes_a_weight_that_is_scaled_in_the_graph(search):
    (site,) = search(ScaledWeight(), X).sites
    assert (site.scheme, site.weight_path) == ("dense", "out.weight")


class Unknown(Attention):
    def project(self, y):
        return self.out(torch.sort(y)[0])


class Probabilities(Attention):
    def project(self, y):
        return torch.softmax(y, -1)


class Unused(Attention):
    def forward(self, x):
        F.scaled_dot_product_attention(x, x, x)
        return self.out(x)


@pytest.mark.parametrize(
    ("attention", "reason"),
    [
        (NoProjection, "joins the residual stream"),
        (Unknown, "goes into an operation the search does not know"),
        (Probabilities, "goes into a softmax"),
        (Unused, "is not used"),
    ],
)
def test_says_where_an_attention_ended(attention, reason, search):
    found = search(attention(), X)
    assert found.sites == []
    (miss,) = found.misses
    assert reason in miss.reason
    assert not miss.left_by_graph_break


def test_names_the_graph_break_between_attention_and_projection(search):
    class Broken(Attention):
        def project(self, y):
            torch._dynamo.graph_break()
            return self.out(y)

    found = search(Broken(), X)
    assert found.sites == []
    (miss,) = found.misses
    assert "leaves the graph" in miss.reason
    assert miss.left_by_graph_break
