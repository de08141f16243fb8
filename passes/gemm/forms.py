"""The table of GEMM forms: where each keeps input, weight and bias, and how its partial product is spelled.

A new form is one more entry of ``FORMS``. Forms speak of the *operand* that the operation multiplies; what it
is made of is ``operand``'s and ``following``'s to say.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Node

from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.arguments import argument
from oproj_pass.passes.graph.provenance import rank_of, value_of

aten = torch.ops.aten


@dataclass(frozen=True)
class GemmForm:
    """One way to write ``x @ weight (+ bias)``; positions index the node's arguments."""

    name: str
    targets: frozenset[Any]
    input: tuple[int, str]
    weight: tuple[int, str]
    bias: tuple[int, str] | None
    contraction_dim: int  # of the 2-D weight operand: 1 for [H, K], 0 for [K, H]
    partial: Any = None  # called with ([rows, K/N], operand) on a rank's slice, without bias
    plain: dict[str, float] = field(default_factory=dict)  # keyword arguments that must have these values
    biased: Any = None  # called with input, weight and bias in the form's own order


FORMS = (
    GemmForm(
        "linear", ops.targets("linear"), (0, "input"), (1, "weight"), (2, "bias"), 1, aten.linear.default, {},
        aten.linear.default,
    ),
    GemmForm(
        "addmm", ops.targets("addmm"), (1, "mat1"), (2, "mat2"), (0, "input"), 0, aten.mm.default,
        {"alpha": 1, "beta": 1}, aten.addmm.default,
    ),
    GemmForm("mm", ops.targets("mm"), (0, "input"), (1, "mat2"), None, 0, aten.mm.default, {}),
    GemmForm("bmm", ops.targets("bmm"), (0, "input"), (1, "mat2"), None, 0, aten.mm.default, {}),
    GemmForm(
        "matmul", ops.targets("matmul", "imatmul"), (0, "input"), (1, "other"), None, 0, aten.mm.default, {}
    ),
)  # fmt: skip
_FORM_OF = {target: form for form in FORMS for target in form.targets}
_LINEAR = FORMS[0]


@dataclass(frozen=True)
class GemmCall:
    """A call in one of the forms: ``input`` times ``matrix``, which ``copies`` repeat for a batch."""

    form: GemmForm
    input: Node
    matrix: Node
    copies: tuple[Node, ...]
    bias: Node | None


def gemm_call(node: Node) -> GemmCall | None:
    """The parts of a GEMM of the table, whatever its operand is made of."""
    form = _form_of(ops.operation(node))
    if form is None:
        return None
    x, operand = argument(node, *form.input), argument(node, *form.weight)
    bias = argument(node, *form.bias) if form.bias else None
    if not isinstance(x, Node) or not isinstance(operand, Node):
        return None
    copies = _copies_of_a_matrix(operand)
    matrix: Any = copies[0].args[0] if copies else operand
    return GemmCall(form, x, matrix, copies, bias)


@lru_cache(maxsize=4096)  # a graph calls few operations in tens of thousands of nodes
def _form_of(operation: Any) -> GemmForm | None:
    form = _FORM_OF.get(operation)
    is_packet = form is None and isinstance(operation, torch._ops.OpOverloadPacket)
    return _LINEAR if is_packet and operation._qualified_op_name in ops.ENGINE_LINEAR else form


def _copies_of_a_matrix(operand: Node) -> tuple[Node, ...]:
    """The nodes that repeat a 2-D matrix for every batch entry, as a decomposed linear does, matrix first."""
    node, copies = operand, []
    while (
        (rank_of(node) or 0) > 2 and ops.operation(node) in ops.BROADCAST and _same_matrix(node, node.args[0])
    ):
        copies.append(node)
        node = node.args[0]  # type: ignore[assignment]
    return tuple(reversed(copies)) if rank_of(node) == 2 else ()


def _same_matrix(node: Node, source: Any) -> bool:
    original = value_of(source) if isinstance(source, Node) else None
    return original is not None and value_of(node).shape[-2:] == original.shape[-2:]
