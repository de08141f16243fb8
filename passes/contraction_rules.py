"""One rule an operation: on which dimension of its inputs lies what lies on a dimension of its output.

Rules speak of equal consecutive parts: cutting the output into N along the one must be cutting each input
into N along the other. What they cannot tell exactly they refuse.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from oproj_pass.passes import ops
from oproj_pass.passes.literals import UNFLATTEN, VIEW, Literal
from oproj_pass.passes.provenance import value_of


class CannotFollow(Exception):
    """K cannot be followed through an operation; the message completes "has a weight that ..."."""


@dataclass(frozen=True)
class Step:
    """K lies on dimension ``dim`` of ``node``, whose every index there stands for ``unit`` features."""

    node: Node
    dim: int
    unit: Fraction

    @property
    def shape(self) -> torch.Size:
        """The node's shape; refused where it is unknown."""
        value = value_of(self.node)
        if not isinstance(value, Tensor):
            raise CannotFollow(f"is computed by `{self.node.name}`, of unknown shape")
        return value.shape

    def to(self, node: Any, dim: int, unit: Fraction | None = None) -> "Step":
        """The step from this output to an input."""
        return Step(node, dim, self.unit if unit is None else unit)


@dataclass(frozen=True)
class Inputs:
    """Where the walk goes on, and the sizes that the operation states."""

    steps: tuple[Step, ...] = ()
    literals: tuple[Literal, ...] = ()


def inputs_of(step: Step) -> Inputs:
    """Where K lies on the inputs of the step's node; an input that is left out is the same on every rank."""
    for family, rule in _RULES:
        if ops.operation(step.node) in family:
            return rule(step)
    if step.node.target is getattr:  # w.T, as Dynamo writes it
        return _transposed(step)
    raise CannotFollow(f"is computed by `{step.node.name}`, through which K cannot be followed")


def _elementwise(step: Step) -> Inputs:
    """Right-aligned broadcasting."""
    aligned = ((node, step.dim - len(step.shape) + _rank(node)) for node in step.node.all_input_nodes)
    return Inputs(
        tuple(step.to(node, dim) for node, dim in aligned if dim >= 0 and value_of(node).shape[dim] != 1)
    )


def _unary(step: Step) -> Inputs:
    return Inputs((step.to(step.node.args[0], step.dim),))


def _transposed(step: Step) -> Inputs:
    """By trying: the dimension of the input that ends where K lies."""
    source = step.node.args[0]
    rank = _rank(source)
    moved = _call(step.node, torch.empty([dim + 2 for dim in range(rank)], device="meta"))
    return Inputs((step.to(source, int(moved.shape[step.dim]) - 2),))


def _viewed(step: Step) -> Inputs:
    """K's outermost dimension holds it: [H, K] is [H, K/g, g] in parts of K/g, and the other way round."""
    source: Any = step.node.args[0]
    before, after = value_of(source).shape, step.shape
    outer, extent = math.prod(after[: step.dim]), after[step.dim]
    for dim, size in enumerate(before):
        if math.prod(before[:dim]) == outer and size > 1:
            if size % extent and extent % size:
                break
            literals = (Literal(step.node, step.dim),) if _states_sizes(step.node) else ()
            return Inputs((step.to(source, dim, step.unit * Fraction(extent, size)),), literals)
    raise CannotFollow(f"is viewed by `{step.node.name}` from {list(before)} to {list(after)}, across K")


def _states_sizes(node: Node) -> bool:
    """A view may also name another element type, or another tensor."""
    is_cast = any(isinstance(value, torch.dtype) for value in (*node.args, *node.kwargs.values()))
    return not is_cast and ops.operation(node) in VIEW | UNFLATTEN


def _expanded(step: Step) -> Inputs:
    found = _elementwise(step)
    return replace(found, literals=(Literal(step.node, step.dim),))


def _repeated(step: Step) -> Inputs:
    """``repeat_interleave`` of scales: each stands for as many features more as it is repeated."""
    source, repeats = step.node.args[0], _argument(step.node, 1, "repeats", None)
    dim = _argument(step.node, 2, "dim", None)
    if not isinstance(repeats, int) or dim is None or "output_size" in step.node.kwargs:
        raise CannotFollow(f"is repeated by `{step.node.name}`, irregularly")
    same = dim % len(step.shape) == step.dim
    return Inputs((step.to(source, step.dim, step.unit * repeats if same else step.unit),))


def _stacked(step: Step) -> Inputs:
    dim = _argument(step.node, 1, "dim", 0) % len(step.shape)
    return Inputs(tuple(step.to(node, step.dim - (dim < step.dim)) for node in _listed(step, dim)))


def _joined(step: Step) -> Inputs:
    dim = _argument(step.node, 1, "dim", 0) % len(step.shape)
    return Inputs(tuple(step.to(node, step.dim) for node in _listed(step, dim)))


def _listed(step: Step, dim: int) -> Sequence[Node]:
    if dim == step.dim:
        raise CannotFollow(
            f"joins parts along K at `{step.node.name}`, so that every rank needs a piece of each of them"
        )
    return step.node.args[0]  # type: ignore[return-value]


def _selected(step: Step) -> Inputs:
    dim = _argument(step.node, 1, "dim", 0) % _rank(step.node.args[0])
    return Inputs((step.to(step.node.args[0], step.dim + (dim <= step.dim)),))


def _sliced(step: Step) -> Inputs:
    """A part of another dimension; of K only ``[:K]``, which cuts an incomplete last block to its length."""
    dim: Any = step.node.args[1]
    if dim % len(step.shape) == step.dim:
        _require_start(step, _argument(step.node, 2, "start", 0), _argument(step.node, 4, "step", 1))
    return _unary(step)


def _require_start(step: Step, start: Any, stride: Any) -> None:
    """An end needs no care: where K can be split at all, it lies behind every rank's part."""
    if start or stride not in (None, 1):
        raise CannotFollow(f"is cut along K by `{step.node.name}`")


def _indexed(step: Step) -> Inputs:
    """``x[...]``: dimensions kept, cut, dropped, added, or picked from by one index tensor."""
    source, index = step.node.args
    if isinstance(source, Node) and not isinstance(value_of(source), Tensor):
        raise CannotFollow(f"is computed by `{step.node.name}`, through which K cannot be followed")
    return _by_items(step, source, _items(index, _rank(source)))


def _by_items(step: Step, source: Any, items: Sequence[Any]) -> Inputs:
    if sum(isinstance(item, Node) for item in items) > 1:
        raise CannotFollow(f"is picked by several indices at `{step.node.name}`")
    before = after = 0
    for item in items:
        width = value_of(item).dim() if isinstance(item, Node) else 0 if isinstance(item, int) else 1
        if after <= step.dim < after + width:
            return _of_item(step, source, item, before, step.dim - after)
        before, after = before + (item is not None), after + width
    raise CannotFollow(f"is picked out by `{step.node.name}`")


def _of_item(step: Step, source: Any, item: Any, before: int, within: int) -> Inputs:
    if isinstance(item, Node):  # GPTQ's g_idx: a row of scales for every feature, all rows on every rank
        index = value_of(item)
        if index.dtype == torch.bool or index.shape[within] != step.shape[step.dim]:
            raise CannotFollow(f"is picked by a mask at `{step.node.name}`")
        return Inputs((step.to(item, within),))
    if item is None:
        raise CannotFollow(f"is stretched by `{step.node.name}`")
    _require_start(step, item.start, item.step)
    return Inputs((step.to(source, before),))


def _items(index: Any, rank: int) -> list[Any]:
    items = list(index) if isinstance(index, list | tuple) else [index]
    used = sum(item is not None and item is not Ellipsis for item in items)
    where = items.index(Ellipsis) if Ellipsis in items else len(items)
    return [*items[:where], *[slice(None)] * (rank - used), *items[where + 1 :]]


def _aten_index(step: Step) -> Inputs:
    source, indices = step.node.args
    items = [slice(None) if item is None else item for item in indices]  # type: ignore[union-attr]
    return _by_items(step, source, _items(items, _rank(source)))


def _index_select(step: Step) -> Inputs:
    dim, index = step.node.args[1:]
    if dim % len(step.shape) == step.dim:  # type: ignore[operator]
        return Inputs((step.to(index, 0),))
    return _unary(step)


def _call(node: Node, value: Tensor) -> Tensor:
    if node.op == "call_method":
        return getattr(value, str(node.target))(*node.args[1:], **node.kwargs)  # type: ignore[no-any-return]
    return node.target(value, *node.args[1:], **node.kwargs)  # type: ignore[no-any-return, operator]


def _rank(node: Any) -> int:
    value = value_of(node)
    if not isinstance(value, Tensor):
        raise CannotFollow(f"is computed by `{node.name}`, of unknown shape")
    return value.dim()


def _argument(node: Node, position: int, name: str, default: Any) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


_VIEWS = ops.targets("flatten", "squeeze", "unsqueeze", "view_as", "reshape_as") | (
    VIEW - ops.targets("expand")
)
_ELEMENTWISE = ops.targets(
    "mul", "div", "truediv", "floordiv", "add", "sub", "rsub", "neg", "abs", "pow", "exp2", "where",
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "and_", "or_",
    "rshift", "lshift", "__and__", "__rshift__", "__lshift__", "remainder", "clamp",
)  # fmt: skip

_RULES: tuple[tuple[frozenset[Any], Callable[[Step], Inputs]], ...] = (
    (ops.CAST | ops.COPY, _unary),
    (_ELEMENTWISE, _elementwise),
    (ops.TRANSPOSE, _transposed),
    (_VIEWS | UNFLATTEN, _viewed),
    (ops.targets("expand"), _expanded),
    (ops.targets("repeat_interleave"), _repeated),
    (ops.targets("stack"), _stacked),
    (ops.targets("cat", "concat", "concatenate"), _joined),
    (ops.targets("select"), _selected),
    (ops.targets("slice"), _sliced),
    (ops.targets("getitem"), _indexed),
    (ops.targets("index"), _aten_index),
    (ops.targets("index_select"), _index_select),
)
