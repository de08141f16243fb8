"""Small decoders, one for each way in which an output projection is written."""

import torch
import torch.nn.functional as F
from torch import nn


class Conv1D(nn.Module):
    """GPT-2's layer: weight [in, out], written as addmm."""

    def __init__(self, features_in, features_out, bias=True):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features_in, features_out) / features_in**0.5)
        self.bias = nn.Parameter(torch.randn(features_out))

    def forward(self, x):
        flat = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], flat.shape[-1])


class TransposedMatmul(nn.Linear):
    """Falcon's layer: ``x @ weight.T``, bias added by hand."""

    def forward(self, x):
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias


PROJECTIONS = {"linear": nn.Linear, "addmm": Conv1D, "matmul": TransposedMatmul}


class Attention(nn.Module):
    """Causal self-attention over [B, S, H], or over [S, H] when the input has two dimensions."""

    def __init__(
        self, hidden=32, heads=4, head_dim=8, kv_heads=None, projection="linear", bias=True, kind="sdpa"
    ):
        super().__init__()
        self.heads, self.head_dim, self.kind = heads, head_dim, kind
        self.kv_heads = kv_heads or heads
        self.qkv = nn.Linear(hidden, (heads + 2 * self.kv_heads) * head_dim, bias=False)
        self.o_proj = PROJECTIONS[projection](heads * head_dim, hidden, bias=bias)

    def forward(self, x):
        q, k, v = self.qkv(x).split(
            [n * self.head_dim for n in (self.heads, self.kv_heads, self.kv_heads)], -1
        )
        q, k, v = (t.unflatten(-1, (-1, self.head_dim)).transpose(-2, -3) for t in (q, k, v))
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=-3) for t in (k, v))
        y = self.explicit(q, k, v) if self.kind == "explicit" else F.scaled_dot_product_attention(q, k, v)
        return self.o_proj(y.transpose(-2, -3).flatten(-2))

    def explicit(self, q, k, v):
        scores = q @ k.transpose(-1, -2) / self.head_dim**0.5
        return torch.softmax(scores, -1) @ v


class Block(nn.Module):
    def __init__(self, hidden=32, **attention):
        super().__init__()
        self.norm = nn.RMSNorm(hidden)
        self.attn = Attention(hidden, **attention)
        self.up, self.down = nn.Linear(hidden, 2 * hidden), nn.Linear(2 * hidden, hidden)

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        return x + self.down(F.silu(self.up(x)))


class ParallelBlock(Block):
    """GPT-J's: attention and MLP read the same input."""

    def forward(self, x):
        y = self.norm(x)
        attended = self.attn(y)
        return x + attended + self.down(F.silu(self.up(y)))


class Decoder(nn.Module):
    """``layers`` blocks; ``graph_breaks`` puts a break after each."""

    def __init__(self, layers=2, hidden=32, graph_breaks=False, **attention):
        super().__init__()
        self.layers = nn.ModuleList(Block(hidden, **attention) for _ in range(layers))
        self.graph_breaks = graph_breaks

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            if self.graph_breaks:
                torch._dynamo.graph_break()
        return x


def decoder(dtype=torch.float32, **options):
    """A decoder whose weights are the same on every rank."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Decoder(**options).eval().requires_grad_(False).to(dtype)


def parallel_decoder(block=ParallelBlock, layers=2, hidden=32, **attention):
    """A decoder of other blocks."""
    model = decoder(layers=0)
    model.layers = nn.ModuleList(block(hidden, **attention) for _ in range(layers))
    return model.eval().requires_grad_(False)


def rows(*shape, dtype=torch.float32):
    """Activations that differ by element and by rank (ranks are seeded differently)."""
    return torch.randn(*shape, dtype=dtype)
