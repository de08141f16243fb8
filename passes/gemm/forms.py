"""The table of GEMM forms: where each keeps input, weight and bias, and how its partial product is spelled.

A new form is one more entry of ``FORMS``. Forms speak of the *operand* that the operation multiplies; the
weight behind it may be stored transposed (``Conv1D``, ``x @ w.T``), which ``resolve_weight`` follows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from oproj_pass.passes.gemm.axes import Axis, StoredAxis, TensorAxis
from oproj_pass.passes.gemm.following import follow
from oproj_pass.passes.graph import ops
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


FORMS = (
    GemmForm(
        "linear", ops.targets("linear"), (0, "input"), (1, "weight"), (2, "bias"), 1, aten.linear.default, {}
    ),
    GemmForm(
        "addmm", ops.targets("addmm"), (1, "mat1"), (2, "mat2"), (0, "input"), 0, aten.mm.default,
        {"alpha": 1, "beta": 1},
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
class Weight:
    """A stored weight behind a GEMM's operand.

    ``chain`` are the layout and cast nodes between the two, storage first.
    """

    source: Node
    chain: tuple[Node, ...]
    transposed: bool


@dataclass(frozen=True)
class RowScale:
    """Scales of an activation that was quantised before the exchange, which its rows need on arrival.

    ``node``: one scale for all rows, one a row, or, with ``features``, one a row for each so many features.
    """

    node: Node
    features: int | None = None


@dataclass(frozen=True)
class Gemm:
    """A GEMM whose weight is made of graph inputs alone.

    ``operand``: the 2-D matrix it multiplies. ``k``: what its summed axis lies on (``along`` tells of the
    other one). ``row_scales``: what travels with the rows of ``input``. ``refusal``: why it cannot be
    sharded, although its form is known.
    """

    node: Node
    form: GemmForm
    input: Node
    operand: Node
    bias: Node | None
    k: StoredAxis
    scheme: str = "dense"
    row_scales: tuple[RowScale, ...] = ()
    refusal: str | None = None

    @property
    def weight(self) -> TensorAxis:
        """The stored weight, and where K lies on it."""
        return self.k.tensors[0]

    def along(self, axis: Axis) -> StoredAxis:
        """What ``axis`` lies on, but for the bias, which is added to whole results.

        Raises ``CannotFollow`` where that cannot be told.
        """
        if axis is Axis.K:
            return self.k
        found = follow(self.operand, 1 - self.form.contraction_dim, axis)
        for node, dim in self.output_scales():
            scale = follow(node, dim, axis)
            found = found.with_tensors(scale.tensors, scale.constants)
        return found

    def output_scales(self) -> Sequence[tuple[Node, int]]:
        """The operator's further arguments that H lies on, each with the dimension."""
        return ()

    def emit_partial(self, graph: Graph, rows: Node, *row_scales: Node) -> Node:
        """Insert the bias-free product of ``rows`` with the operand, of which a rank may hold a part."""
        return graph.call_function(self.form.partial, (rows, self.operand))

    def add_bias(self, graph: Graph, y: Node) -> Node:
        """Insert what is added once, after the sum over ranks, to ``y`` [T, H]."""
        if self.bias is None:
            return y
        y = graph.call_function(aten.add.Tensor, (y, self.bias))
        product, bias = value_of(self.node).dtype, value_of(self.bias).dtype
        return y if product == bias else graph.call_function(aten.to.dtype, (y, product))

    def erase(self) -> None:
        """Remove the node, which nothing may read any more, and the constants made for it alone."""
        for node in (self.node, *reversed(self.k.constants)):
            if not node.users:
                node.graph.erase_node(node)


@dataclass(frozen=True)
class GemmCall:
    """A call in one of the forms: ``input`` times ``matrix``, which ``copies`` repeat for a batch."""

    form: GemmForm
    input: Node
    matrix: Node
    copies: tuple[Node, ...]
    bias: Node | None


def dense_gemm(node: Node, call: GemmCall) -> Gemm | None:
    """The GEMM at ``node``, a call of the table, if its weight is a 2-D graph input; else None."""
    found = on_matrix(call.matrix, call.form.contraction_dim)
    if found is None:
        return None
    weight, chain = found
    k = summed_axis(call.input, (weight,), (*chain, *call.copies))
    return Gemm(node, call.form, call.input, call.matrix, call.bias, k)


def summed_axis(x: Node, tensors: tuple[TensorAxis, ...], constants: tuple[Node, ...] = ()) -> StoredAxis:
    """K of a GEMM with the input ``x`` [.., K]."""
    value = value_of(x)
    extent = value.shape[-1] if isinstance(value, Tensor) and value.dim() else 0
    return StoredAxis(Axis.K, extent, tensors, constants)


def gemm_call(node: Node) -> GemmCall | None:
    """The parts of a GEMM of the table, whatever its operand is made of."""
    form = _form_of(ops.operation(node)) if node.op in ("call_function", "call_method") else None
    if form is None:
        return None
    x, operand = _argument(node, form.input), _argument(node, form.weight)
    bias = _argument(node, form.bias) if form.bias else None
    if not isinstance(x, Node) or not isinstance(operand, Node):
        return None
    copies = _copies_of_a_matrix(operand)
    matrix: Any = copies[0].args[0] if copies else operand
    return GemmCall(form, x, matrix, copies, bias)


def _form_of(operation: Any) -> GemmForm | None:
    form = _FORM_OF.get(operation)
    is_packet = form is None and isinstance(operation, torch._ops.OpOverloadPacket)
    return _LINEAR if is_packet and operation._qualified_op_name in ops.ENGINE_LINEAR else form


def on_matrix(operand: Node, operand_dim: int) -> tuple[TensorAxis, tuple[Node, ...]] | None:
    """Where a dimension of a GEMM's operand lies on the stored matrix behind it, with the nodes between."""
    weight = resolve_weight(operand)
    if weight is None or rank_of(weight.source) not in (2, None):
        return None
    dim = 1 - operand_dim if weight.transposed else operand_dim
    return TensorAxis(weight.source, dim), weight.chain


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


def is_plain(gemm: Gemm) -> bool:
    """Whether the form's scaling arguments have their neutral values."""
    return all(gemm.node.kwargs.get(name, neutral) == neutral for name, neutral in gemm.form.plain.items())


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


def _argument(node: Node, position: tuple[int, str]) -> Any:
    index, name = position
    return node.args[index] if index < len(node.args) else node.kwargs.get(name)
