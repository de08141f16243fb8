"""One rule an operation: on which dimension of its inputs lies what lies on a dimension of its output.

K stands here for the axis that is followed, whichever it is.

Rules speak of equal consecutive parts: cutting the output into N along the one must be cutting each input
into N along the other. What they cannot tell exactly they refuse.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from oproj_pass.passes.gemm.following_step import CannotFollow, Inputs, Step, only_input, rank
from oproj_pass.passes.gemm.index_rules import index_selected, indexed, picked, selected, sliced
from oproj_pass.passes.gemm.literals import REPEAT, UNFLATTEN, VIEW, Literal
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.arguments import argument
from oproj_pass.passes.graph.provenance import value_of

logger = logging.getLogger(__name__)


def inputs_of(step: Step) -> Inputs:
    """Where K lies on the inputs of the step's node; an input that is left out is the same on every rank."""
    rule = _rule_for(step.node)
    if rule is None:
        raise CannotFollow(
            f"is computed by `{step.node.name}`, through which {step.axis.name} cannot be followed"
        )
    try:
        return rule(step)
    except CannotFollow:
        raise
    except Exception as error:  # arguments that the rule did not foresee
        logger.warning(
            "%s cannot be followed through `%s`", step.axis.name, step.node.format_node(), exc_info=True
        )
        raise CannotFollow(
            f"is computed by `{step.node.name}`, whose arguments are not understood ({type(error).__name__})"
        ) from error


def _rule_for(node: Node) -> Callable[[Step], Inputs] | None:
    if node.target is getattr:  # w.T, as Dynamo writes it
        return _transposed
    if ops.operator_name(node) in _ELEMENTWISE_OPERATORS:
        return _elementwise
    return next((rule for family, rule in _RULES if ops.operation(node) in family), None)


def _elementwise(step: Step) -> Inputs:
    """Right-aligned broadcasting."""
    aligned = ((node, step.dim - len(step.shape) + rank(node)) for node in step.node.all_input_nodes)
    return Inputs(
        tuple(step.to(node, dim) for node, dim in aligned if dim >= 0 and value_of(node).shape[dim] != 1)
    )


def _transposed(step: Step) -> Inputs:
    """By trying: the dimension of the input that ends where K lies."""
    source = step.node.args[0]
    moved = _call(step.node, torch.empty([dim + 2 for dim in range(rank(source))], device="meta"))
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
            return Inputs((step.to(source, dim, step.unit * Fraction(extent, size)),), _stated_size(step))
    raise CannotFollow(
        f"is viewed by `{step.node.name}` from {list(before)} to {list(after)}, across {step.axis.name}"
    )


def _stated_size(step: Step) -> tuple[Literal, ...]:
    """The size of K's dimension, if the call states it; a view may also name another element type."""
    node = step.node
    given = (*node.args[1:], *node.kwargs.values())
    if any(isinstance(value, torch.dtype) for value in given) or ops.operation(node) not in VIEW | UNFLATTEN:
        return ()
    if step.node.all_input_nodes != [step.node.args[0]]:
        raise CannotFollow(f"is viewed by `{node.name}` with sizes that are computed")
    if ops.operation(node) in UNFLATTEN:
        dim, sizes = argument(node, 1, "dim", None), argument(node, 2, "sizes", None)
        first = dim % rank(node.args[0])
        if not first <= step.dim < first + len(sizes):
            return ()
    return (Literal(node, step.dim),)


def _expanded(step: Step) -> Inputs:
    return replace(_elementwise(step), literals=_stated_size(step))


def _repeated(step: Step) -> Inputs:
    """``repeat_interleave`` of scales: each stands for as many features more as it is repeated.

    One that is repeated for all features is the same on every rank, and repeated less often.
    """
    source: Any = step.node.args[0]
    repeats, dim = argument(step.node, 1, "repeats", None), argument(step.node, 2, "dim", None)
    if not isinstance(repeats, int) or dim is None or "output_size" in step.node.kwargs:
        raise CannotFollow(f"is repeated by `{step.node.name}`, irregularly")
    if dim % len(step.shape) != step.dim:
        return only_input(step)
    if value_of(source).shape[step.dim] == 1:
        return Inputs(literals=(Literal(step.node, step.dim),))
    return Inputs((step.to(source, step.dim, step.unit * repeats),))


def _stacked(step: Step) -> Inputs:
    dim = argument(step.node, 1, "dim", 0) % len(step.shape)
    return Inputs(tuple(step.to(node, step.dim - (dim < step.dim)) for node in _listed(step, dim)))


def _joined(step: Step) -> Inputs:
    dim = argument(step.node, 1, "dim", 0) % len(step.shape)
    return Inputs(tuple(step.to(node, step.dim) for node in _listed(step, dim)))


def _listed(step: Step, dim: int) -> Sequence[Node]:
    if dim == step.dim:
        raise CannotFollow(
            f"joins parts along {step.axis.name} at `{step.node.name}`, so that every rank needs a piece of "
            "each of them"
        )
    return step.node.args[0]  # type: ignore[return-value]


def _call(node: Node, value: Tensor) -> Tensor:
    if node.op == "call_method":
        return getattr(value, str(node.target))(*node.args[1:], **node.kwargs)  # type: ignore[no-any-return]
    return node.target(value, *node.args[1:], **node.kwargs)  # type: ignore[no-any-return, operator]


_EXPAND = ops.targets("expand")
_VIEWS = ops.targets("flatten", "squeeze", "unsqueeze") | UNFLATTEN | VIEW - _EXPAND
_ELEMENTWISE = ops.targets(
    "mul", "div", "truediv", "floordiv", "add", "sub", "rsub", "neg", "abs", "pow", "exp2", "where",
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "and_", "or_",
    "rshift", "lshift", "__and__", "__rshift__", "__lshift__", "remainder", "clamp",
)  # fmt: skip

_ELEMENTWISE_OPERATORS = ("npu::npu_trans_quant_param",)  # where their library is loaded

_RULES: tuple[tuple[frozenset[Any], Callable[[Step], Inputs]], ...] = (
    (ops.CAST | ops.COPY, only_input),
    (_ELEMENTWISE, _elementwise),
    (ops.TRANSPOSE, _transposed),
    (_VIEWS, _viewed),
    (_EXPAND, _expanded),
    (REPEAT, _repeated),
    (ops.targets("stack"), _stacked),
    (ops.targets("cat", "concat", "concatenate"), _joined),
    (ops.targets("select"), selected),
    (ops.targets("slice"), sliced),
    (ops.targets("getitem"), indexed),
    (ops.targets("index"), picked),
    (ops.targets("index_select"), index_selected),
)
