"""Graphs of plain functions, traced without Dynamo, and what their rewrite computes on every rank."""

import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import symbolic_trace
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from oproj_pass.passes import Exchange, ShardOProj, find_projections, run_passes, shard_of
from oproj_pass.passes.graph.provenance import placeholders
from tests.support.fake import fake_world, run_on_all_ranks


def attend(x):
    """Attention over the rows of x [T, K]."""
    return F.scaled_dot_product_attention(*[x[None, None]] * 3)[0, 0]


def traced(function, *examples):
    """The graph of ``function``, in the operations that it calls, with fake values."""
    gm = symbolic_trace(function)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(example) for example in examples]
    FakeTensorProp(gm, mode).propagate_dont_convert_inputs(*fakes)
    return gm


def search(function, activations, *stored):
    """Sites and near misses of ``function(*activations, *stored)``."""
    gm = traced(function, *activations, *stored)
    return find_projections(gm, parameters=names_of(gm, stored))


def names_of(gm, stored):
    """Names of the inputs that hold ``stored``, which come last."""
    inputs = placeholders(gm)
    return {node.name: node.name for node in inputs[len(inputs) - len(stored) :]}


def on_all_ranks(function, xs, *stored, size=2, slice_of=shard_of, edit=None):
    """Results by rank after the rewrite, rank r with the activations ``xs[r]``; sites; near misses."""
    gm = traced(function, *xs[0], *stored)
    names = names_of(gm, stored)
    with fake_world(size) as group:
        (record,) = run_passes(gm, (), [ShardOProj(Exchange(size, group), parameters=names)])
        if edit:
            edit(gm)
            gm.recompile()
        (output,) = gm.graph.find_nodes(op="output")
        output.args = ((output.args[0],),)
        gm.recompile()
        results = run_on_all_ranks(gm, record, dict(zip(names, stored, strict=True)), xs, size, slice_of)
    return results, record.matches, record.near_misses
