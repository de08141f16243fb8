"""Says which nodes are collectives, and how many bytes each one moves.

The size of a collective is the one NCCL's performance tests define: its output for an all-gather, its
input for every other kind. It is what one rank brings, not what crosses a wire. Symbolic sizes stay.
"""

import math
import re

import torch

from oproj_pass.passes.diff.graph_snapshot import GraphSnapshot, NodeSnapshot
from oproj_pass.passes.diff.labels import format_nbytes
from oproj_pass.passes.graph.collectives import Collective, named_collective

__all__ = ["collective_name", "count_collectives", "payload", "payload_nbytes", "value_nbytes"]

_OPERATOR = re.compile(r"^torch\.ops\.(?P<namespace>\w+)\.(?P<name>\w+)")


def collective_name(node: NodeSnapshot) -> str | None:
    """`all_to_all_single` for `_c10d_functional.all_to_all_single.default`; None for all else, waits too."""
    found = _collective_of(node)
    return None if found is None else found.name


def _collective_of(node: NodeSnapshot) -> Collective | None:
    match = _OPERATOR.match(node.target) if node.op == "call_function" else None
    return None if match is None else named_collective(f"{match['namespace']}::{match['name']}")


def count_collectives(graph: GraphSnapshot) -> dict[str, int]:
    """Calls of each collective in `graph`."""
    names = [name for node in graph.nodes if (name := collective_name(node))]
    return {name: names.count(name) for name in sorted(set(names))}


def payload(node: NodeSnapshot, graph: GraphSnapshot) -> str | None:
    """Bytes that collective `node` of `graph` moves, as `s33*7168*2 B` or `224 KiB`.

    None if it is no collective, or the shape is unknown, as that of a product inside a fused operator.
    """
    sized = _sized_by(node, graph)
    return None if sized is None else _format_size(sized)


def payload_nbytes(node: NodeSnapshot, graph: GraphSnapshot) -> int | None:
    """The same as a number; None also where a size is symbolic."""
    sized = _sized_by(node, graph)
    return None if sized is None else value_nbytes(sized)


def value_nbytes(node: NodeSnapshot) -> int | None:
    """Bytes of a node's value; None where it is not one tensor, or a size is symbolic."""
    dtype = getattr(torch, node.dtype or "", None)
    if node.shape is None or not isinstance(dtype, torch.dtype):
        return None
    if not all(isinstance(size, int) for size in node.shape):
        return None
    return math.prod(int(size) for size in node.shape) * dtype.itemsize


def _sized_by(node: NodeSnapshot, graph: GraphSnapshot) -> NodeSnapshot | None:
    """The node whose value is what a collective moves."""
    found = _collective_of(node)
    if found is None or found.is_fused:
        return None
    is_input_size = node.inputs and not found.is_sized_by_output
    return graph.by_name[node.inputs[0]] if is_input_size else node


def _format_size(node: NodeSnapshot) -> str | None:
    if (nbytes := value_nbytes(node)) is not None:
        return format_nbytes(nbytes)
    dtype = getattr(torch, node.dtype or "", None)
    if node.shape is None or not isinstance(dtype, torch.dtype):
        return None
    sizes = [str(size) if re.fullmatch(r"[\w*]+", str(size)) else f"({size})" for size in node.shape]
    return "*".join([*sizes, str(dtype.itemsize)]) + " B"
