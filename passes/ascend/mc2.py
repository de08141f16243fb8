"""Fuses a partial product with the reduce-scatter that follows it (``npu_mm_reduce_scatter_base``).

1. Scan: the regions that ``ShardOProj`` wrote; other reduce-scatters of the model are none of this pass's
   business.
2. Decide: ask the table of the chip's limits (``mc2_limits``); a region that may not be fused is a near miss.
3. Rewrite: one operator computes and reduces in step. The bias stays behind it, added once.

It leaves the first half alone: ``npu_all_to_all_matmul`` joins the ranks along the summed dimension where our
exchange joins them along the rows; it would add up different tokens.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import has_side_effect

from oproj_pass.passes.ascend.mc2_limits import Device, Product, refusal
from oproj_pass.passes.contract import NearMiss
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.collectives import communicator
from oproj_pass.passes.graph.metadata import inherit_origin
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.shard import ShardRecord
from oproj_pass.passes.strategies.region import ShardedRegion

aten, functional = torch.ops.aten, torch.ops._c10d_functional

_DENSE = (aten.linear.default, aten.mm.default)


class FuseMatmulReduceScatter:
    """The pass; runs after ``ShardOProj``. A region that it leaves unfused is a near miss with the reason.

    ``regions``: what was sharded, filled by the time this pass runs; a region that is fused is replaced
    there. ``device``: the chip that will run the graph. ``comm_name``: the HCCL communicator behind a c10d
    group's name, None where it has none.
    """

    name = "fuse_mm_reduce_scatter"

    def __init__(
        self, regions: list[ShardedRegion], device: Device, comm_name: Callable[[str], str | None]
    ) -> None:
        self.regions, self.device, self.comm_name = regions, device, comm_name

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> ShardRecord:
        """Rewrite ``gm``; ``example_inputs`` are left as they are."""
        start = time.perf_counter()
        judged = [(region, self._refusal(region)) for region in self.regions]
        written = {id(region): self._rewrite(region) for region, reason in judged if reason is None}
        self.regions[:] = [written.get(id(region), region) for region in self.regions]
        return ShardRecord(
            name=self.name,
            matches=tuple(region for region, reason in judged if reason is None),
            near_misses=tuple(
                NearMiss(region.path, f"is not fused: {reason}") for region, reason in judged if reason
            ),
            changed=tuple(node for region in written.values() for node in region.partial),
            seconds=time.perf_counter() - start,
            regions=tuple(written.values()),
        )

    def _refusal(self, region: ShardedRegion) -> str | None:
        if region.config.chunks > 1:
            return f"its rows are exchanged in {region.config.chunks} chunks (option `chunks`)"
        if _reduction(region) is None:
            return f"its strategy {region.strategy!r} has no reduce-scatter (option `reduce`)"
        reduce, product = _pair(region)
        comm_name = self.comm_name(str(reduce.args[-1]))
        if not _operator():
            return "torch_npu, which defines the fused operator, is not loaded"
        if comm_name is None:
            return "its process group has no HCCL communicator"
        if reduce.args[0] is not product:
            return f"its partial sums are reduced in {value_of(reduce).dtype} (option `reduce_dtype`)"
        if product.target not in _DENSE or len(product.users) > 1:
            return f"its product is `{product.name}`, and only a plain one is fused"
        return refusal(_describe(region, comm_name), self.device)

    def _rewrite(self, region: ShardedRegion) -> ShardedRegion:
        reduce, product = _pair(region)
        graph, rows, operand = reduce.graph, *product.args[:2]
        (operator,) = _operator()
        has_side_effect(operator.default)  # a rank that does not use the result must still take part
        created = []
        with graph.inserting_before(reduce):
            if product.target is aten.linear.default:
                operand = graph.call_function(aten.t.default, (operand,))
                created.append(operand)
            comm_name = self.comm_name(str(reduce.args[-1]))
            created.append(graph.call_function(operator.default, (rows, operand, comm_name, reduce.args[2])))
        for node in created:
            inherit_origin(node, reduce)
        (wait,) = reduce.users
        wait.replace_all_uses_with(created[-1])
        kept = tuple(node for node in region.reduce if node not in (reduce, wait))
        for node in (wait, reduce, product):
            graph.erase_node(node)
        partial = (*(node for node in region.partial if node is not product), *created)
        return replace(region, partial=partial, reduce=kept)


def _operator() -> frozenset[Any]:
    return ops.registered("npu::npu_mm_reduce_scatter_base")


def _reduction(region: ShardedRegion) -> Node | None:
    scatter = functional.reduce_scatter_tensor.default
    return next((node for node in region.reduce if node.target is scatter), None)


def _pair(region: ShardedRegion) -> tuple[Node, Node]:
    """The reduce-scatter, and the partial product that it reduces."""
    reduce = _reduction(region)
    assert reduce is not None
    return reduce, region.partial[-1]


def _describe(region: ShardedRegion, comm_name: str) -> Product:
    reduce, product = _pair(region)
    rows, partial = value_of(product.all_input_nodes[0]), value_of(product)
    others = {communicator(node) for node in product.graph.nodes} - {None, comm_name}
    return Product(
        world_size=reduce.args[2],  # type: ignore[arg-type]
        rows=rows.shape[0],
        in_features=rows.shape[1],
        out_features=partial.shape[1],
        input_dtype=rows.dtype,
        weight_dtype=value_of(product.all_input_nodes[1]).dtype,
        contiguous_input=rows.is_contiguous(),
        other_groups=frozenset(map(str, others)),
    )
