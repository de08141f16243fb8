"""Which inputs of a compiler's graph are stored weights, and how a rank's slice is cut inside the graph."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from oproj_pass.passes.gemm.axes import Axis
from oproj_pass.passes.graph.metadata import propagate
from oproj_pass.passes.graph.provenance import placeholders
from oproj_pass.passes.strategies.exchange import Exchange
from oproj_pass.passes.strategies.region import ShardedRegion

aten = torch.ops.aten

_STORED = "_torchair_is_parameter"  # the mark both compilers set on parameters and buffers before a pass runs


def stored_weights(gm: GraphModule, example_inputs: Sequence[Any]) -> frozenset[Node]:
    """The inputs that no step changes; every input where the compiler has marked none.

    A cache kept in a buffer is marked as well, but written at the graph's end.
    """
    written = {node.args[0] for node in gm.graph.find_nodes(op="call_function", target=aten.copy_.default)}
    inputs = dict(zip(placeholders(gm), example_inputs, strict=True))
    marked = {node for node, value in inputs.items() if hasattr(value, _STORED)}
    return frozenset((marked or set(inputs)) - written)


def cut_in_graph(
    gm: GraphModule,
    regions: Sequence[ShardedRegion],
    full: Mapping[Node, Any],
    presharded: Collection[Node],
    rank: int,
) -> None:
    """Make each region read rank ``rank``'s parts of its stored tensors' placeholders.

    ``full``: the placeholders' values before the rewrite; those in ``presharded`` are slices already.
    """
    first = next(node for node in gm.graph.nodes if node.op != "placeholder")
    stale = {node for region in regions for cut in region.cuts for node in cut.constants}
    for node, cut in {node: cut for region in regions for node, cut in region.by_node.items()}.items():
        if node not in presharded:
            node.meta["val"] = full[node]
            readers, mine = list(node.users), node
            with gm.graph.inserting_before(first):
                for axis, tensor in cut.along:
                    mine = _emit_part(gm.graph, mine, full[node], tensor.dim, axis, cut.region.config, rank)
                    stale.add(mine)
            for user in readers:
                user.replace_input_with(node, mine)
    propagate([node for node in gm.graph.nodes if node in stale], "val")


def _emit_part(
    graph: Graph, tensor: Node, full: Any, dim: int, axis: Axis, exchange: Exchange, rank: int
) -> Node:
    part = full.shape[dim] // exchange.over(axis).size
    start = exchange.place(axis, rank) * part
    return graph.call_function(aten.slice.Tensor, (tensor, dim, start, start + part))
