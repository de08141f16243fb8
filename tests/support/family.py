"""A small decoder with a site of every role, and all its variants; the same weights on every rank."""

import torch
import torch.nn.functional as F
from torch import nn

HIDDEN, INTERMEDIATE, VOCABULARY = 32, 48, 97


class GatedMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(HIDDEN, INTERMEDIATE), nn.Linear(HIDDEN, INTERMEDIATE, bias=False)
        self.down = nn.Linear(INTERMEDIATE, HIDDEN)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class FusedMlp(nn.Module):
    """Gate and up in one weight."""

    def __init__(self):
        super().__init__()
        self.gate_up, self.down = nn.Linear(HIDDEN, 2 * INTERMEDIATE), nn.Linear(INTERMEDIATE, HIDDEN)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class PlainMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, INTERMEDIATE), nn.Linear(INTERMEDIATE, HIDDEN)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


MLPS = {"gated": GatedMlp, "fused": FusedMlp, "plain": PlainMlp}


class Layer(nn.Module):
    def __init__(self, mlp):
        super().__init__()
        self.norm, self.o_proj, self.mlp = nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, HIDDEN), mlp()

    def forward(self, x):
        y = self.norm(x)
        x = x + self.o_proj(F.scaled_dot_product_attention(y, y, y))
        return x + self.mlp(self.norm(x))


class LanguageModel(nn.Module):
    """Ids [B, S] to logits of the rows ``sampled`` [M, V], of all rows [B, S, V] without."""

    def __init__(self, mlp, layers, tied):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN, padding_idx=3)
        self.layers = nn.ModuleList(Layer(mlp) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=not tied)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids, sampled=None):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return self.head(x if sampled is None else x.flatten(0, 1)[sampled])


def language_model(mlp="gated", layers=1, tied=False, dtype=torch.float32):
    """The model, frozen; equal arguments give equal weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LanguageModel(MLPS[mlp], layers, tied).eval().requires_grad_(False).to(dtype)


def ids(*shape):
    """Ids that differ by rank, the last of the vocabulary among them."""
    drawn = torch.randint(0, VOCABULARY, shape)
    drawn.view(-1)[-1] = VOCABULARY - 1
    return drawn
