"""A decode graph before and after its output projections are sharded by hand, with no second process."""

import copy
import functools
import operator

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from hypothesis import settings

from oproj_pass.passes.diff import snapshot
from tests.support.fake import fake_world

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

c10d = torch.ops._c10d_functional
WORLD = 4


class Attention(nn.Module):
    def __init__(self, hidden, heads, head_dim, bias):
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.qkv = nn.Linear(hidden, 3 * heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, hidden, bias=bias)

    def forward(self, x, k, v):
        q = self.qkv(x).view(x.shape[0], 3, self.heads, self.head_dim)[:, 0]
        out = F.scaled_dot_product_attention(q.unsqueeze(2), k, v).squeeze(2)
        return self.o_proj(out.reshape(x.shape[0], -1))


class Layer(nn.Module):
    def __init__(self, hidden, heads, head_dim, bias):
        super().__init__()
        self.attn = Attention(hidden, heads, head_dim, bias)
        self.norm = nn.RMSNorm(hidden)
        self.mlp = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x, k, v):
        x = x + self.attn(self.norm(x), k, v)
        return x + self.mlp(F.silu(x))


class Decoder(nn.Module):
    def __init__(self, layers, hidden=64, heads=4, head_dim=32, bias=False):
        super().__init__()
        self.layers = nn.ModuleList(Layer(hidden, heads, head_dim, bias) for _ in range(layers))

    def forward(self, x, k, v):
        for layer in self.layers:
            x = layer(x, k, v)
        return x


def capture_decoder(shard, layers, *, bias, dynamic):
    """Snapshots of a decoder before and after `shard`, its number of tokens symbolic if `dynamic`."""
    captured = []

    def backend(gm, inputs):
        unsharded = copy.deepcopy(gm)
        before = snapshot(gm)
        shard(gm)
        captured.append((before, snapshot(gm)))
        return unsharded.forward

    model = Decoder(layers, bias=bias).eval().bfloat16()
    shapes = (16, 64), (16, 4, 8, 32), (16, 4, 8, 32)
    args = [torch.zeros(shape, dtype=torch.bfloat16) for shape in shapes]
    with torch.no_grad():
        torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic)(*args)
    (graphs,) = captured
    return graphs


def shard_by_hand(gm, n=WORLD):
    """What the pass does to each output projection, in place."""
    group = dist.group.WORLD.group_name
    for linear in [n for n in gm.graph.nodes if n.target is F.linear and "o_proj" in n.args[1].name]:
        x, weight, bias = linear.args
        hidden, k = weight.meta["example_value"].shape
        weight.meta["example_value"] = weight.meta["example_value"].new_empty(hidden, k // n)
        with gm.graph.inserting_before(linear):
            call = _emitter(gm.graph, linear)
            packed = call(torch.reshape, x, (-1, n, k // n))
            packed = call(torch.transpose, packed, 0, 1)
            packed = call(torch.reshape, packed, (-1,))
            rows = call(torch.ops.aten.sym_size.int, packed, 0)
            split = call(operator.floordiv, rows, n)
            y = call(c10d.all_to_all_single.default, packed, [split] * n, [split] * n, group)
            y = call(c10d.wait_tensor.default, y)
            y = call(torch.reshape, y, (-1, k // n))
            y = call(F.linear, y, weight)
            y = call(c10d.reduce_scatter_tensor.default, y, "sum", n, group)
            y = call(c10d.wait_tensor.default, y)
            if bias is not None:
                y = call(torch.add, y, bias)
        linear.replace_all_uses_with(y)
        gm.graph.erase_node(linear)
    gm.graph.lint()
    gm.recompile()


def _emitter(graph, origin):
    def call(target, *args):
        node = graph.call_function(target, args)
        node.meta = {k: origin.meta[k] for k in ("nn_module_stack", "stack_trace")}
        node.meta["example_value"] = target(*torch.fx.map_arg(args, lambda a: a.meta["example_value"]))
        return node

    return call


@pytest.fixture(scope="session")
def decoder():
    """Builds snapshots of a captured decoder, before and after its projections are sharded."""

    @functools.cache
    def build(layers, *, bias=False, dynamic=True, shard=shard_by_hand):
        torch._dynamo.reset()
        with fake_world(WORLD):
            return capture_decoder(shard, layers, bias=bias, dynamic=dynamic)

    return build
