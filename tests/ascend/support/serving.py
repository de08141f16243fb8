"""Serves a sharded decoder where torch_npu is loaded, and tells what npugraph_ex and the device did.

Rows do not see each other, and the cache is a buffer. Attention is written out, because on npu tensors
``scaled_dot_product_attention`` is specialised on the number of rows, even under ``dynamic=True``.
"""

import gc
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from oproj_pass.capture import StepBound, plan_capture
from oproj_pass.runtime import DecodeRunner

HIDDEN, HEADS, HEAD_DIM, RANKS = 48, 4, 16, 4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
        self.register_buffer("keys", torch.randn(HEADS, HEAD_DIM, 32))
        self.register_buffer("values", torch.randn(HEADS, 32, HEAD_DIM))

    def forward(self, x):
        queries = self.q_proj(x).view(-1, HEADS, 1, HEAD_DIM)
        attended = torch.softmax(queries @ self.keys, -1) @ self.values
        return self.o_proj(attended.reshape(-1, HEADS * HEAD_DIM))


class Decoder(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def fake_world():
    dist.init_process_group("cpu:fake,npu:fake", store=FakeStore(), rank=0, world_size=RANKS)


def sharded(model, *, dynamic, ranks=RANKS, sizes=None, **inner_options):
    """``model``, compiled by npugraph_ex: projections sharded over ``ranks``, or roles by their ``sizes``."""
    by_role = {f"{role}_tensor_parallel_size": size for role, size in (sizes or {"oproj": ranks}).items()}
    options = {**by_role, "inner_options": inner_options}
    return torch.compile(model, backend="oproj_npu", fullgraph=True, dynamic=dynamic, options=options)


def decoder(layers=1):
    return Decoder(layers).eval().requires_grad_(False).npu()


def rows(num_tokens):
    return torch.zeros(num_tokens, HIDDEN, device="npu")


def part_of_buffer(num_tokens, size):
    """Rows as a runner with a largest size of ``size`` brings them: Dynamo guards that they are a view."""
    return torch.zeros(size * HIDDEN, device="npu")[: num_tokens * HIDDEN].view(num_tokens, HIDDEN)


def runner_of(fn, sizes):
    """A runner that is yet to capture, with a plan of exactly ``sizes``."""
    return DecodeRunner(fn, plan_capture(StepBound(max(sizes), 4096), sizes=sizes), rows={"x": 0})


def events():
    """The fake device's log so far."""
    return Path(os.environ["CANN_STUB_EVENTS"]).read_text().splitlines()


def events_of(call):
    """What ``call`` makes the device do: captures and replays."""
    before = len(events())
    call()
    return [line for line in events()[before:] if line.startswith(("capture", "replay"))]


def counters():
    """How often npugraph_ex captured each FX graph, and why again."""
    return dict(torch._dynamo.utils.counters["npugraph_ex"])


def acl_graphs():
    """npugraph_ex's own records of the FX graphs that it captured."""
    from npugraph_ex._acl_concrete_graph.acl_graph import AclGraph

    return [thing for thing in gc.get_objects() if type(thing) is AclGraph and thing.graphs_meta]


def refusal(call):
    """Type and message of the error that ``call`` raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return None
