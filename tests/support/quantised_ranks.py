"""Runs a quantised projection sharded, on a rank, and says how it compares with the unsharded one.

What went over the wire and each rank's partial product are compared bit by bit with slices of the unsharded
computation of every rank; the results, which add up in another order, by their largest relative error.
"""

import operator
from contextlib import nullcontext
from dataclasses import dataclass
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.fx import Interpreter

from oproj_pass.passes.graph.collectives import is_collective
from oproj_pass.weights.memory_report import shard_report
from oproj_pass.weights.placement import Placement
from tests.support.quantised import ATTENTION, model, multiply_by_blocks

c10d = torch.ops._c10d_functional
aten = torch.ops.aten


ROWS = 3


def rows(size, tokens=ROWS, features=64, outlier=1.0):
    """Every rank's activations, alike on all ranks; those of rank 0 times ``outlier``."""
    generator = torch.Generator().manual_seed(1)
    by_rank = torch.randn(size, tokens, features, generator=generator)
    by_rank[0] *= outlier
    return dict(enumerate(by_rank.to(torch.bfloat16)))


@dataclass(frozen=True)
class Facts:
    """``payload``, ``scales`` and ``partial``: whether they are the unsharded computation's, bit by bit."""

    payload: bool
    scales: bool
    partial: bool
    error: float
    wire_nbytes: float  # that this rank sends before the product, a token
    y: torch.Tensor
    weights: dict[str, tuple[int, int]]  # full and kept bytes


class Recorder(Interpreter):
    """Keeps what goes into and comes out of each collective."""

    def run(self, *args):
        self.sent, self.received = [], []
        return super().run(*args)

    def run_node(self, node):
        value = super().run_node(node)
        if is_collective(node):
            self.sent.append((node.target, self.env[node.args[0]]))
        if node.target is c10d.wait_tensor.default:
            self.received.append((node.args[0].target, value.clone()))
        return value

    def call_function(self, target, args, kwargs):
        if target is aten._scaled_mm.default and args[3].shape[1:] not in ((), args[1].shape[1:]):
            target = multiply_by_blocks
        return super().call_function(target, args, kwargs)

    def of(self, target, values):
        return [value for kind, value in values if kind is target]


def sharded(name, rows, options=None, sabotage=None, module_options=None):
    """``Facts`` of one step; ``rows``: rank to activations."""
    torch._dynamo.reset()  # every model is an instance of one class, whose recompilations are limited
    x, module = rows[dist.get_rank()], model(name, **(module_options or {}))
    recorders = []

    def inner(gm, example_inputs):
        if sabotage in EDITS:
            EDITS[sabotage](gm)
            gm.graph.lint()
            gm.recompile()
        recorders.append(Recorder(gm))
        return recorders[-1].run

    settings = {"inner_backend": inner, "attention_ops": ATTENTION, "expected_sites": 1}
    settings["oproj_tensor_parallel_size"] = dist.get_world_size()
    reference = model(name, **(module_options or {}))
    with torch.inference_mode(), wrong_slice() if sabotage == "wrong slice" else nullcontext():
        compiled = torch.compile(
            module, backend="oproj_npu", options=settings | (options or {}), fullgraph=True
        )
        y = compiled(x)
        return _compare(module, reference.o_proj, rows, y, recorders[-1])


def _compare(module, reference, rows, y, recorder):
    rank, size = dist.get_rank(), dist.get_world_size()
    quantised = [reference.quantise(rows[r]) for r in range(size)]
    mine = [of_all_ranks(quantised, index) for index in range(len(quantised[0]))]
    whole = reference.whole()
    part = {name: my_part(tensor, whole["weight"], rows[rank].shape[-1]) for name, tensor in whole.items()}
    partial = reference.multiply(*mine, **part, bias=None)
    expected = reference(rows[rank])
    (sent,) = recorder.of(c10d.reduce_scatter_tensor.default, recorder.sent)
    payload, *scales = recorder.of(c10d.all_to_all_single.default, recorder.received) or [sent]
    scales += recorder.of(c10d.all_gather_into_tensor.default, recorder.received)
    difference = (y.double() - expected.double()).abs().max() / expected.double().abs().max()
    return Facts(
        payload=same(payload.flatten(), mine[0].flatten()),
        scales=len(scales) == len(mine) - 1
        and all(same(a.flatten(), b.flatten()) for a, b in zip(scales, mine[1:], strict=True)),
        partial=same(sent, partial.to(sent.dtype)),
        error=difference.item(),
        wire_nbytes=sum(map(_sent_nbytes, recorder.sent)) / rows[rank].shape[:-1].numel(),
        y=y,
        weights={
            w.path: (w.full_nbytes, w.shard_nbytes + w.left_nbytes) for w in shard_report(module).weights
        },
    )


def of_all_ranks(quantised, index):
    """Every rank's rows, or scales of rows: my slice of what lies along the features, else all of it."""
    size = len(quantised)
    if quantised[0][index].dim() == 2 and quantised[0][index].shape[-1] > 1:
        return torch.cat([part[index] for part in quantised]).chunk(size, -1)[dist.get_rank()].contiguous()
    return torch.cat([rows_of(part, index, part[0]) for part in quantised])


def my_part(tensor, weight, features):
    """This rank's part along K of a stored tensor that has K where the weight has it."""
    part = tensor.chunk(dist.get_world_size(), weight.shape.index(features))[dist.get_rank()]
    return part.clone()


def rows_of(quantised, index, q):
    """A rank's scales, one a row."""
    scale = quantised[index]
    return scale.expand(q.shape[:-1].numel()) if scale.numel() == 1 else scale.flatten()


def same(a, b):
    """Equal bit by bit, NaN included; float8 travels as uint8."""
    return a.element_size() == b.element_size() and torch.equal(_bits(a), _bits(b))


def _bits(tensor):
    return tensor.contiguous().view(torch.uint8)


def _sent_nbytes(sent):
    target, value = sent
    size = dist.get_world_size()
    whole = value.numel() * value.element_size()
    return {
        c10d.all_to_all_single.default: whole * (size - 1) / size,
        c10d.all_gather_into_tensor.default: whole * (size - 1),
    }.get(target, 0)


def own_scales_for_all(gm):
    """Take my scales for every rank's rows, as if they did not travel."""
    for node in gm.graph.find_nodes(op="call_function", target=c10d.all_gather_into_tensor.default):
        (wait,) = node.users
        with gm.graph.inserting_before(node):
            mine = gm.graph.call_function(aten.repeat.default, (node.args[0], [node.args[1]]))
        wait.replace_all_uses_with(mine)


def no_exchange(gm):
    for node in gm.graph.find_nodes(op="call_function", target=c10d.all_to_all_single.default):
        node.replace_all_uses_with(node.args[0])


def no_reduction(gm):
    for node in gm.graph.find_nodes(op="call_function", target=c10d.reduce_scatter_tensor.default):
        with gm.graph.inserting_before(node):
            parts = gm.graph.call_function(torch.chunk, (node.args[0], node.args[2]))
            mine = gm.graph.call_function(operator.getitem, (parts, dist.get_rank()))
        node.replace_all_uses_with(mine)


def bias_on_every_rank(gm):
    """Leave the bias in the product, where the sum over ranks adds it up."""
    product = next(node for node in gm.graph.nodes if node.target in PRODUCTS)
    bias = next(node for node in gm.graph.find_nodes(op="placeholder") if "bias" in node.name)
    argument = next(arg for arg in product.target._schema.arguments if arg.name == "bias")
    if argument.kwarg_only:
        product.update_kwarg("bias", bias)
    else:
        product.update_arg(product.target._schema.arguments.index(argument), bias)


PRODUCTS = {
    torch.ops.npu.npu_quant_matmul.default, aten._scaled_mm.default, aten._scaled_mm_v2.default,
}  # fmt: skip
EDITS = {
    "no exchange": no_exchange,
    "no reduction": no_reduction,
    "own scales": own_scales_for_all,
    "bias on every rank": bias_on_every_rank,
}


def wrong_slice():
    def next_ranks_slice(placement, full):
        part = full.shape[placement.dim] // placement.group.size
        return full.narrow(placement.dim, (placement.group.rank + 1) % placement.group.size * part, part)

    return patch.object(Placement, "part_of", next_ranks_slice)
