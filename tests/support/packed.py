"""A decoder over rows of several requests, packed as engines pack them, with keys and values in a cache."""

import torch
import torch.nn.functional as F
from torch import nn

from oproj_pass.runtime import ContextParallelStep

HIDDEN, HEADS, VOCABULARY, LENGTH, SLOTS = 16, 2, 23, 24, 4
ROWS = {"input_ids": 0, "positions": 0, "slots": 0}
WHOLE = ("positions", "slots")


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))
        self.register_buffer("cache", torch.zeros(2, SLOTS, LENGTH, HIDDEN))

    def forward(self, x, positions, slots, context):
        kept, where = torch.stack((self.k(x), self.v(x))), (slots, positions)
        if context is not None:
            kept, where = context.whole(kept, 1), (context["slots"], context["positions"])
        self.cache[:, where[0], where[1]] = kept
        keys, values = (
            part[slots].unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.cache
        )  # [T, heads, length, head_dim]
        seen = torch.arange(LENGTH) <= positions[:, None, None, None]
        y = F.scaled_dot_product_attention(self.q(x).unflatten(-1, (HEADS, 1, -1)), keys, values, seen)
        return x + self.o(y.flatten(1))


class PackedDecoder(nn.Module):
    """``exchange``: what is done with rows across replicas. Slot 0 is nobody's: padding writes there."""

    def __init__(self, exchange=None):
        super().__init__()
        self.exchange = exchange or nn.Identity()
        self.embed, self.place = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(LENGTH, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, input_ids, positions, slots, context=None):
        x = self.embed(input_ids) + self.place(positions)
        for layer in self.layers:
            x = self.exchange(layer(x, positions, slots, context))
        return self.head(x)

    def caches(self):
        """Keys and values of all slots that are somebody's."""
        return torch.stack([layer.cache[:, 1:] for layer in self.layers])


def packed(exchange=None):
    """A model with the same weights on every rank."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return PackedDecoder(exchange).eval().requires_grad_(False)


class Request:
    """A prompt that is computed in chunks of ``chunk`` tokens, and what was generated after it."""

    def __init__(self, slot, length, chunk=LENGTH):
        self.slot, self.prompt_len, self.chunk, self.num_computed = slot, length, chunk, 0
        generator = torch.Generator().manual_seed(length)
        self.tokens = torch.randint(VOCABULARY, (length,), generator=generator).tolist()

    @property
    def num_scheduled(self):
        return min(self.chunk, len(self.tokens) - self.num_computed)


def inputs_of(requests):
    """Whole rows of a step, one request after the other."""
    rows = [
        (request.tokens[position], position, request.slot)
        for request in requests
        for position in range(request.num_computed, request.num_computed + request.num_scheduled)
    ]
    return {name: torch.tensor(column) for name, column in zip(ROWS, zip(*rows, strict=True), strict=True)}


def step_of(requests, pcp_size):
    """The same step, as the runner takes it."""
    columns = (
        [getattr(request, name) for request in requests]
        for name in ("num_scheduled", "prompt_len", "num_computed")
    )
    return ContextParallelStep(pcp_size, *columns)


def advance(requests, logits):
    """Sample greedily under a penalty for tokens seen, by the step's own counts of whole rows."""
    end = 0
    for request in requests:
        end += request.num_scheduled
        request.num_computed += request.num_scheduled
        if request.num_computed == len(request.tokens):
            seen = torch.bincount(torch.tensor(request.tokens), minlength=VOCABULARY)
            request.tokens.append(int((logits[end - 1] - 0.1 * seen).argmax()))
