"""Whatever lies between attention and its projection, and however it is named, the dataflow finds it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

HEADS, WIDTH, H = 4, 6, 32
K = HEADS * WIDTH


class Attention(nn.Module):
    """Self-attention in three steps, each of which a test overrides."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(H, K) for _ in range(3))
        self.out = nn.Linear(K, H)

    def forward(self, x):
        return self.project(x, self.merge(self.attend(*self.split(x))))

    def split(self, x):
        return (y(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for y in (self.q, self.k, self.v))

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    def merge(self, y):
        return y.transpose(1, 2).flatten(2)

    def project(self, x, y):
        return self.out(y)


class SwiGlu(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(H, 48), nn.Linear(H, 48), nn.Linear(48, H)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, attn, scale=1.0):
        super().__init__()
        self.attn, self.mlp, self.norms = attn, SwiGlu(), nn.ModuleList(nn.LayerNorm(H) for _ in range(2))
        self.scale = scale

    def forward(self, x):
        x = x + self.attn(self.norms[0](x)) * self.scale
        return x + self.mlp(self.norms[1](x))


def decoder(attention, **block):
    return nn.Sequential(*(Block(attention(), **block) for _ in range(2)))


X = torch.randn(2, 5, H)


class FullWidthNorm(Attention):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(K)

    def project(self, x, y):
        return self.out(self.norm(y))


class LayerNormed(FullWidthNorm):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(K)


class WrittenNorm(Attention):
    def project(self, x, y):
        return self.out(y * torch.rsqrt(y.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(y.dtype))


class Gated(Attention):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(H, K)

    def project(self, x, y):
        return self.out(y * torch.sigmoid(self.gate(x)))


class GatedByItself(Attention):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(K, K)

    def project(self, x, y):
        return self.out(y * torch.sigmoid(self.gate(y)))


class Differential(Attention):
    def attend(self, q, k, v):
        first = F.scaled_dot_product_attention(q[..., :3], k[..., :3], v)
        return first - 0.3 * F.scaled_dot_product_attention(q[..., 3:], k[..., 3:], v)


class DifferentialScores(Attention):
    def attend(self, q, k, v):
        first, second = (torch.softmax(q[..., s] @ k[..., s].mT, -1) for s in (slice(3), slice(3, 6)))
        return (first - 0.3 * second) @ v


class Sinks(Attention):
    def __init__(self):
        super().__init__()
        self.sinks = nn.Parameter(torch.zeros(HEADS))

    def attend(self, q, k, v):
        scores = q @ k.transpose(2, 3)
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1] @ v


class Einsum(Attention):
    def attend(self, q, k, v):
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * WIDTH**-0.5
        scores = torch.tanh(scores / 30) * 30
        scores = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf)
        return torch.einsum("bhqk,bhkd->bhqd", F.dropout(F.softmax(scores, dim=-1), 0.1, self.training), v)


class OutputArguments(Attention):
    def attend(self, q, k, v):
        scores = torch.matmul(q, k.mT)
        probabilities = torch.softmax(torch.max(scores, torch.full_like(scores, -1e4)), -1)
        return torch.matmul(probabilities, v, out=q.new_empty(q.shape))


class Flex(Attention):
    def attend(self, q, k, v):
        return flex_attention(q, k, v)


class AbsorbedMla(Attention):
    """Attention over latents, then one small matrix per head."""

    def __init__(self):
        super().__init__()
        self.expand = nn.Parameter(torch.randn(HEADS, WIDTH, WIDTH))

    def merge(self, y):
        flat = y.transpose(0, 1).flatten(1, 2)  # [heads, B * S, width]
        return torch.bmm(flat, self.expand).transpose(0, 1).reshape(2, 5, K)


class AbsorbedMlaEinsum(AbsorbedMla):
    def merge(self, y):
        return torch.einsum("bhsc,hcd->bshd", y, self.expand).flatten(2)


class HardCodedViews(Attention):
    def merge(self, y):
        return y.transpose(1, 2).contiguous().view(2, 5, 4, 6).view(2, 5, 24)


class LowRankAdapter(Attention):
    """LoRA as peft nests it: the base layer is the projection, the adapter stays whole on every rank."""

    def __init__(self):
        super().__init__()
        self.out = nn.ModuleDict(
            {
                "base": nn.Linear(K, H),
                "lora_A": nn.ModuleDict({"default": nn.Linear(K, 2, bias=False)}),
                "lora_B": nn.ModuleDict({"default": nn.Linear(2, H, bias=False)}),
            }
        )

    def project(self, x, y):
        adapter = self.out["lora_B"]["default"](self.out["lora_A"]["default"](y))
        return self.out["base"](y) + 2.0 * adapter


class TwoSteps(Attention):
    """A low-rank output projection: the first GEMM is the one that attention reaches."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(K, 8)
        self.up = nn.Linear(8, H)

    def project(self, x, y):
        return self.up(self.out(y))


class CacheBySetitem(Attention):
    def __init__(self):
        super().__init__()
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(2, HEADS, 8, WIDTH))

    def attend(self, q, k, v):
        self.keys[:, :, 1:6] = k
        self.values[:, :, 1:6] = v
        return F.scaled_dot_product_attention(q, self.keys, self.values)


class CacheByCopy(CacheBySetitem):
    def attend(self, q, k, v):
        self.keys[:, :, 1:6].copy_(k)
        self.values.narrow(2, 1, 5).copy_(v)
        return torch.softmax(q @ self.keys.mT, -1) @ self.values


class CacheByIndex(CacheBySetitem):
    def attend(self, q, k, v):
        rows = torch.arange(1, 6)
        self.keys.index_copy_(2, rows, k)
        self.values.index_put_((torch.arange(2)[:, None, None], torch.arange(4)[:, None], rows), v)
        return F.scaled_dot_product_attention(q, self.keys, self.values)


class FreshBuffer(Attention):
    """Keys gathered into a new buffer: what was constant turns into an activation."""

    def attend(self, q, k, v):
        keys = torch.zeros(2, HEADS, 8, WIDTH)
        keys[:, :, :5] = k
        return torch.softmax(q @ keys.mT, -1)[..., :5] @ v


class FusedQkvRoot(nn.Module):
    """No submodule of its own for attention: everything in one forward."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(H, 3 * K), nn.Linear(K, H)

    def forward(self, x):
        q, k, v = self.qkv(x).view(2, 5, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, K))


VARIANTS = [
    Attention, FullWidthNorm, LayerNormed, WrittenNorm, Gated, GatedByItself, Differential,
    DifferentialScores, Sinks, Einsum, OutputArguments, Flex, AbsorbedMla, AbsorbedMlaEinsum, HardCodedViews,
    TwoSteps, CacheBySetitem, CacheByCopy, CacheByIndex, FreshBuffer,
]  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_finds_the_projection_behind(variant, search):
    found = search(decoder(variant), X)
    assert found.paths == ["0.attn.out", "1.attn.out"]
    assert [site.in_features for site in found.sites] == [K, K]
    assert found.missed == {}


# flex_attention is no single operator in ATen graphs on CPU.
@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant is not Flex])
def test_finds_as_many_in_aten(variant, search_aten):
    for found in search_aten(Block(variant()), X):
        assert [site.in_features for site in found.sites] == [K]
        assert found.missed == {}


def test_finds_the_base_layer_of_an_adapter_and_not_the_adapter(search):
    assert search(decoder(LowRankAdapter), X).paths == ["0.attn.out.base", "1.attn.out.base"]


class FlatAdapter(Attention):
    """The same, with its layers side by side in the attention's own module."""

    def __init__(self):
        super().__init__()
        self.lora_A, self.lora_B = nn.Linear(K, 2, bias=False), nn.Linear(2, H, bias=False)

    def project(self, x, y):
        return self.out(y) + 2.0 * self.lora_B(self.lora_A(y))


@pytest.mark.parametrize(
    ("root", "projection"),
    [
        (Attention, "out"),
        (FlatAdapter, "out"),
        (LowRankAdapter, "out.base"),
        (GatedByItself, "out"),
        (TwoSteps, "out"),
    ],
)
def test_takes_one_projection_where_the_attention_itself_is_the_root_module(root, projection, search):
    found = search(root(), X)
    assert (found.paths, found.missed) == ([projection], {})


def test_finds_a_projection_whose_result_is_scaled_before_the_residual_sum(search):
    assert search(decoder(Attention, scale=0.25), X).paths == ["0.attn.out", "1.attn.out"]


def test_finds_a_projection_in_the_root_module(search, search_aten):
    assert search(FusedQkvRoot(), X).paths == ["out"]
    assert all(len(found.sites) == 1 for found in search_aten(FusedQkvRoot(), X))


def test_reads_no_names(search):
    class Mlp(Attention):
        def __init__(self):
            super().__init__()
            self.x1 = self.out
            del self.out

        def project(self, x, y):
            return self.x1(y)

    model = decoder(Mlp)
    for block in model:
        block.mlp.o_proj = block.mlp.down
        del block.mlp.down
        block.mlp.forward = lambda x, m=block.mlp: m.o_proj(F.silu(m.gate(x)) * m.up(x))
    assert search(model, X).paths == ["0.attn.x1", "1.attn.x1"]
