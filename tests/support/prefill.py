"""Small prefill models, one for each way in which an attention is written, and their split on real ranks."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from oproj_pass.passes import run_passes
from oproj_pass.passes.context_parallel import ContextGroup, ContextParallel

HIDDEN, HEADS, HEAD_DIM, LATENT, VOCABULARY = 32, 4, 8, 6, 40


class Attention(nn.Module):
    """``kind``: "causal" masks by index, "masked" by a given mask, "sinks" is written by hand, "mla" has a
    latent; all but "mla" with half as many key and value heads."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        kv = 2 * HEADS * HEAD_DIM if kind == "mla" else HEADS // 2 * HEAD_DIM
        self.q = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=False)
        self.k, self.v = (nn.Linear(HIDDEN, HEADS // 2 * HEAD_DIM, bias=False) for _ in range(2))
        self.down, self.up = nn.Linear(HIDDEN, LATENT, bias=False), nn.Linear(LATENT, kv, bias=False)
        self.sinks = nn.Parameter(torch.randn(HEADS))
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)

    def forward(self, x, cos, sin, mask, cache):
        batch, length, _ = x.shape
        q, k, v = self.heads(x)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        kept = (k, v)
        if k.shape[1] < HEADS:
            k, v = (
                t[:, :, None].expand(-1, -1, 2, -1, -1).reshape(batch, HEADS, -1, HEAD_DIM) for t in (k, v)
            )
        y = self.attend(q, k, v, mask)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1)), kept

    def heads(self, x):
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, HEADS, HEAD_DIM).transpose(1, 2)
        if self.kind != "mla":
            return q, *(p(x).view(batch, length, -1, HEAD_DIM).transpose(1, 2) for p in (self.k, self.v))
        k_v = self.up(F.rms_norm(self.down(x), (LATENT,)))
        return q, *k_v.view(batch, length, HEADS, 2 * HEAD_DIM).transpose(1, 2).chunk(2, -1)

    def attend(self, q, k, v, mask):
        if self.kind == "causal":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if self.kind != "sinks":
            return F.scaled_dot_product_attention(q, k, v, mask)
        scores = (q @ k.transpose(-1, -2)).masked_fill(~mask, float("-inf"))
        sinks = self.sinks.view(1, HEADS, 1, 1).expand(q.shape[0], -1, q.shape[2], 1)
        return torch.softmax(torch.cat((scores, sinks), -1), -1)[..., :-1] @ v


def rotated(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Prefill(nn.Module):
    """Two layers between an embedding and a head. ``starts``: position of the first token of each sequence;
    ``window``: how many positions back a token sees."""

    def __init__(self, kind="causal", window=10**6, vocabulary=VOCABULARY):
        super().__init__()
        self.window = window
        self.embed = nn.Embedding(vocabulary, HIDDEN)
        self.layers = nn.ModuleList(Attention(kind) for _ in range(2))
        self.norm = nn.RMSNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, vocabulary, bias=False)

    def forward(self, ids, starts, caches=None):
        positions = starts[:, None] + torch.arange(ids.shape[1])
        angles = positions[:, None, :, None] * torch.logspace(0, -2, HEAD_DIM)
        cos, sin = angles.cos(), angles.sin()
        past = 0 if caches is None else caches[0][0].shape[2]
        keys = torch.arange(past + ids.shape[1])
        behind = positions[:, None, :, None] - keys
        mask = (behind >= 0) & (behind < self.window)
        x, kept = self.embed(ids), []
        for place, layer in enumerate(self.layers):
            y, cache = layer(self.norm(x), cos, sin, mask, None if caches is None else caches[place])
            x, kept = x + y, [*kept, cache]
        return self.head(self.norm(x)), kept


def prefill(**options):
    """A model with the same weights on every rank."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Prefill(**options).eval().requires_grad_(False)


def tokens(length, batch=1):
    """The same ids on every rank."""
    return torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(length))


class Splitting:
    """A Dynamo backend that splits over the world."""

    def __init__(self):
        self.records = []

    def __call__(self, gm, example_inputs):
        self.records += run_passes(gm, example_inputs, [ContextParallel(world_group())])
        return gm.forward


def exported(options, *inputs, edit=None, decompose=False):
    """The model's exported graph, split over the world; ``edit(gm, rank)`` changes what was written."""
    split, record = split_export(prefill(**options), *inputs, edit=edit, decompose=decompose)
    assert not record.near_misses, record.near_misses
    return split


def split_export(model, *inputs, edit=None, decompose=False):
    """The same of any model, split or not, and the pass's record."""
    program = torch.export.export(model, inputs)
    program = program.run_decompositions() if decompose else program
    gm = program.graph_module
    (record,) = run_passes(gm, (), [ContextParallel(world_group())])
    if edit:
        edit(gm, dist.get_rank())
        gm.recompile()
    return program.module(check_guards=False), record


def first_chunk_everywhere(gm, rank):
    """An edit that gives every rank the rows of the first."""
    (rows,) = gm.graph.find_nodes(op="call_function", target=torch.ops.oproj_pass.context_rows.default)
    rows.args = (*rows.args[:3], 0)


def differences(result, expected):
    """The largest difference of logits and caches."""
    pairs = [(result[0], expected[0]), *zip(flat(result[1]), flat(expected[1]), strict=True)]
    return max((a - b).abs().max().item() for a, b in pairs)


def flat(caches):
    return [tensor for cache in caches for tensor in cache]


def world_group():
    return ContextGroup(dist.get_world_size(), dist.get_rank(), dist.group.WORLD.group_name)
