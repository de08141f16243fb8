"""Which inputs of a compiler's graph are stored weights, and how a rank's slice is cut inside the graph."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch._guards import TracingContext
from torch.fx import Graph, GraphModule, Node

from oproj_pass.passes.gemm.axes import Axis
from oproj_pass.passes.graph.metadata import propagate
from oproj_pass.passes.graph.provenance import placeholders
from oproj_pass.passes.strategies.exchange import Exchange
from oproj_pass.passes.strategies.region import ShardedRegion

aten = torch.ops.aten

_STORED = "_torchair_is_parameter"  # the mark both compilers set on parameters and buffers before a pass runs


def marked_weights(gm: GraphModule, example_inputs: Sequence[Any]) -> frozenset[Node]:
    """The inputs that are known as parameters or buffers, and that no step changes.

    A cache kept in a buffer is known as well, but written at the graph's end. torchair marks none outside of
    its mode "reduce-overhead"; AOTAutograd, which calls both compilers, has them on record.
    """
    inputs = dict(zip(placeholders(gm), example_inputs, strict=True))
    known = [node for number, node in enumerate(inputs) if number in _on_record()]
    marked = [node for node, value in inputs.items() if hasattr(value, _STORED)]
    return frozenset(marked or known) - _written(gm)


def stored_weights(gm: GraphModule, marked: frozenset[Node]) -> frozenset[Node]:
    """The inputs that may be weights: those that are marked, every one that no step changes if none is."""
    return marked or frozenset(placeholders(gm)) - _written(gm)


def _on_record() -> Collection[int]:
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return () if metadata is None else metadata.static_input_indices


def _written(gm: GraphModule) -> set[Any]:
    return {node.args[0] for node in gm.graph.find_nodes(op="call_function", target=aten.copy_.default)}


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
