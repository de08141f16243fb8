"""Fuses a partial product with the reduce-scatter that follows it (``npu_mm_reduce_scatter_base``).

1. Scan: find the reduce-scatters whose rows an all_to_all brought, as ``ShardOProj`` writes them; other
   reduce-scatters of the model are none of this pass's business.
2. Decide: ask the table of the chip's limits (``mc2_limits``); a pair that may not be fused is a near miss.
3. Rewrite: one operator computes and reduces in step. The bias stays behind it, added once.

It leaves the first half alone: ``npu_all_to_all_matmul`` joins the ranks along the summed dimension where our
exchange joins them along the rows; it would add up different tokens.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import has_side_effect

from oproj_pass.passes import ops
from oproj_pass.passes.mc2_limits import Device, Product, refusal
from oproj_pass.passes.metadata import inherit_origin
from oproj_pass.passes.process_groups import communicator
from oproj_pass.passes.provenance import module_path, value_of
from oproj_pass.passes.runner import PassRecord
from oproj_pass.passes.sites import NearMiss

aten, functional = torch.ops.aten, torch.ops._c10d_functional

_DENSE = (aten.linear.default, aten.mm.default)
_TO_ROWS = ops.CAST | ops.LAYOUT | {functional.wait_tensor}  # between an exchange and the product of its rows
_EXCHANGES = ("_c10d_functional::all_to_all_single", "npu_define::all_to_all_single_npu")


@dataclass(frozen=True)
class FusedPair:
    """A partial product [rows, K/N] @ [K/N, H] and the reduce-scatter that alone reads it."""

    path: str
    product: Node
    reduce: Node

    @property
    def group_name(self) -> str:
        """The c10d name of the group that reduces."""
        return str(self.reduce.args[3])


class FuseMatmulReduceScatter:
    """The pass; runs after ``ShardOProj``. Every pair that it leaves unfused is a near miss with the reason.

    ``device``: the chip that will run the graph. ``comm_name``: the HCCL communicator behind a c10d group's
    name, None where it has none.
    """

    name = "fuse_mm_reduce_scatter"

    def __init__(self, device: Device, comm_name: Callable[[str], str | None]) -> None:
        self.device, self.comm_name = device, comm_name

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> PassRecord:
        """Rewrite ``gm``; ``example_inputs`` are left as they are."""
        start = time.perf_counter()
        pairs = list(_find_pairs(gm.graph))
        reasons = [self._refusal(pair) for pair in pairs]
        fused = [pair for pair, reason in zip(pairs, reasons, strict=True) if reason is None]
        changed = [node for pair in fused for node in self._rewrite(pair)]
        return PassRecord(
            name=self.name,
            matches=tuple(fused),
            near_misses=tuple(
                NearMiss(pair.path, f"is not fused: {reason}")
                for pair, reason in zip(pairs, reasons, strict=True)
                if reason is not None
            ),
            changed=tuple(changed),
            seconds=time.perf_counter() - start,
        )

    def _refusal(self, pair: FusedPair) -> str | None:
        comm_name = self.comm_name(pair.group_name)
        if not _operator():
            return "torch_npu, which defines the fused operator, is not loaded"
        if comm_name is None:
            return "its process group has no HCCL communicator"
        if pair.reduce.args[0] is not pair.product:
            return f"its partial sums are reduced in {value_of(pair.reduce).dtype} (option `reduce_dtype`)"
        if pair.product.target not in _DENSE or len(pair.product.users) > 1:
            return f"its product is `{pair.product.name}`, and only a plain one is fused"
        return refusal(_describe(pair, comm_name), self.device)

    def _rewrite(self, pair: FusedPair) -> list[Node]:
        graph, rows, operand = pair.reduce.graph, *pair.product.args[:2]
        (operator,) = _operator()
        has_side_effect(operator.default)  # a rank that does not use the result must still take part
        created = []
        with graph.inserting_before(pair.reduce):
            if pair.product.target is aten.linear.default:
                operand = graph.call_function(aten.t.default, (operand,))
                created.append(operand)
            comm_name = self.comm_name(pair.group_name)
            fused = graph.call_function(operator.default, (rows, operand, comm_name, pair.reduce.args[2]))
            created.append(fused)
        for node in created:
            inherit_origin(node, pair.reduce)
        (wait,) = pair.reduce.users
        wait.replace_all_uses_with(fused)
        for node in (wait, pair.reduce, pair.product):
            graph.erase_node(node)
        return created


def _operator() -> frozenset[Any]:
    return ops.registered("npu::npu_mm_reduce_scatter_base")


def _find_pairs(graph: Graph) -> Iterator[FusedPair]:
    exchanges = ops.registered(*_EXCHANGES)
    for reduce in graph.find_nodes(op="call_function", target=functional.reduce_scatter_tensor.default):
        product = _skip(reduce.args[0], ops.CAST)
        sources = [_skip(node, _TO_ROWS) for node in product.all_input_nodes[:1]]
        if any(ops.operation(source) in exchanges for source in sources):
            yield FusedPair(module_path(reduce) or reduce.name, product, reduce)


def _skip(node: Any, family: frozenset[Any]) -> Node:
    while ops.operation(node) in family:
        node = node.args[0]
    return node  # type: ignore[no-any-return]


def _describe(pair: FusedPair, comm_name: str) -> Product:
    rows, partial = value_of(pair.product.all_input_nodes[0]), value_of(pair.product)
    others = {communicator(node) for node in pair.reduce.graph.nodes} - {None, comm_name}
    return Product(
        world_size=int(pair.reduce.args[2]),  # type: ignore[arg-type]
        rows=rows.shape[0],
        in_features=rows.shape[1],
        out_features=partial.shape[1],
        input_dtype=rows.dtype,
        weight_dtype=value_of(pair.product.all_input_nodes[1]).dtype,
        contiguous_input=rows.is_contiguous(),
        other_groups=frozenset(map(str, others)),
    )
