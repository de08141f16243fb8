"""A decoder of operators that both Ascend compilers lower."""

import torch
from torch import nn


class Attention(nn.Module):
    """Self-attention over [T, H], written out."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.o_proj = nn.Linear(hidden, hidden)

    def forward(self, x):
        q, k, v = (t.view(len(x), self.heads, -1).transpose(0, 1) for t in self.qkv(x).chunk(3, -1))
        weights = torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, -1)
        return self.o_proj((weights @ v).transpose(0, 1).reshape(len(x), -1))


class Decoder(nn.Module):
    """``layers`` attentions with a residual; the same weights on every rank."""

    def __init__(self, layers=2, hidden=32, heads=4):
        super().__init__()
        self.layers = nn.ModuleList(Attention(hidden, heads) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def decoder(**sizes):
    torch.manual_seed(0)
    return Decoder(**sizes).eval()
