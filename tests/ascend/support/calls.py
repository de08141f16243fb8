"""Reads the graph that npugraph_ex is about to generate code for: which operators, in which order."""

from dataclasses import dataclass

import torch

from tests.ascend.support.lowering import by_backend

COLLECTIVES = {
    "npu_define.all_to_all_single_npu.default": "all_to_all",
    "_c10d_functional.all_gather_into_tensor.default": "all_gather",
    "_c10d_functional.reduce_scatter_tensor.default": "reduce_scatter",
}
PRODUCTS = {
    "aten.matmul.default": "product", "aten.mm.default": "product", "aten.addmm.default": "product",
    "aten.bmm.default": "grouped product",
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One operator: ``name`` as in the tables above or its own; ``operands``: the shapes of its tensors."""

    name: str
    operands: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...] | None
    ranks: tuple[int, ...] | None


def calls_by_backend(model, x, **options):
    """The calls of a step through ``oproj_npu`` with npugraph_ex inside; it runs once, on the fake device."""
    seen = []

    def keep(gm, example_inputs, config):
        seen.extend(_read(node) for node in gm.graph.nodes if node.op == "call_function")

    compiled = by_backend(model, "npugraph_ex", inner_options={"post_grad_custom_post_pass": keep}, **options)
    with torch.no_grad():
        compiled(x)
    return seen


def _read(node):
    name = str(node.target)
    operands = tuple(shape for source in node.all_input_nodes if (shape := _shape(source)) is not None)
    return Call(
        COLLECTIVES.get(name, PRODUCTS.get(name, name)), operands, _shape(node), _ranks(node.args, name)
    )


def _ranks(args, name):
    if name not in COLLECTIVES:
        return None
    if isinstance(args[-1], str):
        group = torch.distributed.distributed_c10d._resolve_process_group(args[-1])
        return tuple(torch.distributed.get_process_group_ranks(group))
    return tuple(args[-2])


def _shape(node):
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None
