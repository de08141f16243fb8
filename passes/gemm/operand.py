"""Follows a GEMM's operand through transposes, casts and copies to one stored matrix, where there is one."""

from dataclasses import dataclass

from torch.fx import Node

from oproj_pass.passes.gemm.axes import TensorAxis
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.provenance import rank_of


@dataclass(frozen=True)
class Weight:
    """A stored weight behind a GEMM's operand.

    ``chain`` are the layout and cast nodes between the two, storage first.
    """

    source: Node
    chain: tuple[Node, ...]
    transposed: bool


def on_matrix(operand: Node, operand_dim: int) -> tuple[TensorAxis, tuple[Node, ...]] | None:
    """Where a dimension of a GEMM's operand lies on the stored matrix behind it, with the nodes between."""
    weight = resolve_weight(operand)
    if weight is None or rank_of(weight.source) not in (2, None):
        return None
    dim = 1 - operand_dim if weight.transposed else operand_dim
    return TensorAxis(weight.source, dim), weight.chain


def resolve_weight(operand: Node) -> Weight | None:
    """Follow transposes, casts and copies from a GEMM's operand back to the stored weight."""
    node, chain, transposed = operand, [], False
    while node.op in ("call_function", "call_method"):
        swapped = swaps_dims(node)
        if swapped is None and ops.operation(node) not in ops.CAST | ops.COPY:
            return None
        transposed ^= bool(swapped)
        chain.append(node)
        node = node.args[0]  # type: ignore[assignment]
    return Weight(node, tuple(reversed(chain)), transposed) if node.op == "placeholder" else None


def swaps_dims(node: Node) -> bool | None:
    """Whether a layout node swaps the two dimensions of a matrix; None if it is no transpose at all."""
    if node.target is getattr:  # w.T, as Dynamo writes it
        return True if node.args[1] in ("T", "mT") else None
    if ops.operation(node) not in ops.TRANSPOSE:
        return None
    dims = [*node.args[1:], *node.kwargs.values()]
    first, *rest = dims[0] if len(dims) == 1 and isinstance(dims[0], list | tuple) else dims or (0, 1)
    if ops.operation(node) in ops.PERMUTE:
        return bool(first % 2)  # type: ignore[operator]
    return bool((first - rest[0]) % 2)  # type: ignore[operator]
