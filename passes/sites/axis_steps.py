"""One step of following an axis back: on which dimension of a node's inputs it lies, or what made it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from oproj_pass.passes.gemm.following_rules import inputs_of
from oproj_pass.passes.gemm.following_step import CannotFollow, Step
from oproj_pass.passes.gemm.forms import gemm_call
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.arguments import argument
from oproj_pass.passes.graph.provenance import value_of

STACKED = "stacked tensors, such as layers or residual streams"
COPIED = "copies of a tensor, such as residual streams"
TAKEN_APART = "parts of a token's features, such as heads or residual streams"

_STACK = ops.targets("stack")
_CAT = ops.targets("cat", "concat", "concatenate")
_COPIES = ops.targets("expand", "expand_as", "repeat", "repeat_interleave")
_ADDS_AXIS = ops.targets("unsqueeze", "getitem")
_VIEWS = ops.targets("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze")
_PARTS = ops.targets("split", "split_with_sizes", "chunk")
_GETITEM = ops.targets("getitem")
_POINTWISE = ops.POINTWISE | ops.COMBINE | ops.CAST | ops.COPY


@dataclass(frozen=True)
class Axis:
    """``extent`` entries along dimension ``dim`` of ``node``, each ``inner`` entries after the one before."""

    node: Node
    dim: int
    extent: int
    inner: int = 1

    @property
    def shape(self) -> torch.Size:
        """The shape of the node."""
        return value_of(self.node).shape  # type: ignore[no-any-return]

    def to(self, node: Any, dim: int) -> "Axis":
        """The same entries along a dimension of another node."""
        return replace(self, node=node, dim=dim)


def axis_of(node: Node, dim: int) -> Axis | None:
    """A whole dimension of a node; None where its size is no number above 1, as that of tokens often is."""
    value = value_of(node)
    if not isinstance(value, Tensor) or not -value.dim() <= dim < value.dim():
        return None
    size = value.shape[dim]
    return Axis(node, dim % value.dim(), size) if isinstance(size, int) and size > 1 else None


def step_back(axis: Axis) -> str | Sequence[Axis]:
    """What made the axis, or where it lies on the node's inputs; nowhere, if that cannot be told."""
    node, operation = axis.node, ops.operation(axis.node)
    if operation is None:
        return ()
    if operation in _GETITEM and not isinstance(value_of(node.args[0]), Tensor):  # type: ignore[arg-type]
        return _of_part(axis)
    if not isinstance(value_of(node), Tensor):
        return ()
    if operation in _STACK | _CAT:
        return _of_joined(axis, is_stack=operation in _STACK)
    if operation in _COPIES:
        return _of_copies(axis)
    if operation in _VIEWS:
        return _of_view(axis)
    if operation in ops.ATTENTION:
        return [axis.to(node.args[0], axis.dim)] if axis.dim == len(axis.shape) - 2 else ()
    if operation in ops.MATMUL:
        return _of_product(axis)
    if operation in _POINTWISE:
        return _of_pointwise(axis)
    if operation in ops.NORM | ops.SOFTMAX:
        return [axis.to(node.args[0], axis.dim)] if _shape(node.args[0]) == axis.shape else ()
    return _by_rule(axis)


def _of_part(axis: Axis) -> Sequence[Axis]:
    """An entry of what ``split`` or ``chunk`` returns."""
    parts: Any = axis.node.args[0]
    return [axis.to(parts.args[0], axis.dim)] if ops.operation(parts) in _PARTS else ()


def _of_joined(axis: Axis, *, is_stack: bool) -> str | Sequence[Axis]:
    tensors: Any = axis.node.args[0]
    dim = argument(axis.node, 1, "dim", 0) % len(axis.shape)
    if dim == axis.dim:
        return STACKED if is_stack or all(_is_new_axis(tensor, dim) for tensor in tensors) else ()
    return [axis.to(tensor, axis.dim - (is_stack and dim < axis.dim)) for tensor in tensors]


def _is_new_axis(tensor: Node, dim: int) -> bool:
    """Whether a dimension of one entry was added to the tensor."""
    before, after = _shape(tensor.args[0]) if tensor.args else None, _shape(tensor)
    if ops.operation(tensor) not in _ADDS_AXIS or before is None or after is None:
        return False
    return after[dim] == 1 and (*after[:dim], *after[dim + 1 :]) == tuple(before)


def _of_copies(axis: Axis) -> str | Sequence[Axis]:
    source: Any = axis.node.args[0]
    before = _shape(source)
    if before is None:
        return ()
    dim = axis.dim - len(axis.shape) + len(before)
    if dim < 0 or (before[dim] == 1 and axis.shape[axis.dim] != 1):
        return COPIED
    return [axis.to(source, dim)] if before[dim] == axis.shape[axis.dim] else ()


def _of_view(axis: Axis) -> Sequence[Axis]:
    """The dimension of the input in whose stride the axis lies."""
    source: Any = axis.node.args[0]
    stride = axis.inner * _product(axis.shape[axis.dim + 1 :])
    step, before = 1, _shape(source) or ()
    for dim in reversed(range(len(before))):
        size = before[dim]
        if not isinstance(size, int) or not isinstance(stride, int):
            return ()
        if stride % step == 0 and size % (stride // step * axis.extent) == 0 and stride // step < size:
            return [Axis(source, dim, axis.extent, stride // step)]
        step *= size
    return ()


def _product(sizes: Sequence[Any]) -> Any:
    result = 1
    for size in sizes:
        result *= size
    return result


def _of_product(axis: Axis) -> str | Sequence[Axis]:
    if ops.operation(axis.node) in ops.EINSUM:
        terms, output = einsum_terms(axis.node)
        letter = output[axis.dim]
        return [axis.to(node, letters.index(letter)) for node, letters in terms if letter in letters]
    call = gemm_call(axis.node)
    if call is None:
        return ()
    is_last = axis.dim == len(axis.shape) - 1
    if is_last:
        return TAKEN_APART if axis.extent < axis.shape[-1] else ()
    rows = _shape(call.input)
    return [axis.to(call.input, axis.dim)] if rows is not None and len(rows) == len(axis.shape) else ()


def einsum_terms(node: Node) -> tuple[list[tuple[Node, str]], str]:
    """The operands of an einsum with their letters, and the output's letters; refused if it has dots."""
    equation, *operands = node.args
    flat: Any = operands[0] if isinstance(operands[0], list | tuple) else operands
    inputs, arrow, output = str(equation).replace(" ", "").partition("->")
    if not arrow or "." in inputs:
        raise CannotFollow(f"is computed by `{node.name}`, whose equation names not every dimension")
    return list(zip(flat, inputs.split(","), strict=True)), output


def _of_pointwise(axis: Axis) -> Sequence[Axis]:
    """Right-aligned broadcasting: the inputs that have the whole dimension."""
    shapes = {node: shape for node in axis.node.all_input_nodes if (shape := _shape(node)) is not None}
    if max(map(len, shapes.values()), default=0) != len(axis.shape):
        return ()
    aligned = [(node, axis.dim - len(axis.shape) + len(shape), shape) for node, shape in shapes.items()]
    return [
        axis.to(node, dim)
        for node, dim, shape in aligned
        if dim >= 0 and isinstance(shape[dim], int) and shape[dim] == axis.shape[axis.dim]
    ]


def _by_rule(axis: Axis) -> Sequence[Axis]:
    """Transposes, selections and the like, whose rules follow a whole dimension."""
    try:
        found = inputs_of(Step(axis.node, axis.dim, Fraction(1))).steps
    except CannotFollow:
        return ()
    return [axis.to(step.node, step.dim) for step in found if step.unit == 1]


def _shape(node: Any) -> torch.Size | None:
    value = value_of(node) if isinstance(node, Node) else None
    return value.shape if isinstance(value, Tensor) else None
