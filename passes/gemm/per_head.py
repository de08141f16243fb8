"""Tells a product that applies a small matrix to each head from one that projects all of them."""

from torch import Tensor
from torch.fx import Node

from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.provenance import value_of


def is_per_head(node: Node, weight: Node) -> bool:
    """Whether a product applies a small matrix of the constant ``weight`` to each head, and keeps the heads.

    A vector (a bias) does not tell, and counts as if.
    """
    value = value_of(weight)
    if not isinstance(value, Tensor) or value.dim() == 2:
        return False
    if value.dim() < 2:
        return True
    if ops.operation(node) in ops.EINSUM:
        return _keeps_batch_index(node, weight)
    return ops.operation(node) not in ops.TENSORDOT and any(size != 1 for size in value.shape[:-2])


def _keeps_batch_index(node: Node, weight: Node) -> bool:
    equation, *operands = node.args
    flat = operands[0] if isinstance(operands[0], list | tuple) else operands
    inputs, _, output = str(equation).replace(" ", "").partition("->")
    terms = dict(zip(flat, map(set, inputs.split(",")), strict=True))
    kept = terms.pop(weight).intersection(output, *terms.values())
    return bool(kept)
