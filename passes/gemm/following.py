"""Follows an axis of a GEMM from its operand back to the stored tensors that the operand is made of.

A weight that is dequantised in the graph is a function of constants: values, scales, zero points, indices.
One walk, from the operand down:

1. At each node, know on which dimension the axis lies, and how many features one index there stands for.
2. Step to its inputs by the operation's rule (``contraction_rules``).
3. At a placeholder, note both. An input on which the axis does not lie is the same on every rank.

Literal sizes on the way (``view``, ``expand``) are noted too, since they shrink with the axis. An
operation without a rule, or one that scatters a rank's features over the whole tensor, is a refusal.
"""

import math
from collections.abc import Container
from fractions import Fraction

from torch.fx import Node

from oproj_pass.passes.gemm.axes import Axis, StoredAxis, TensorAxis
from oproj_pass.passes.gemm.following_rules import inputs_of
from oproj_pass.passes.gemm.following_step import CannotFollow, Step
from oproj_pass.passes.gemm.literals import Literal
from oproj_pass.passes.graph.provenance import stored_inputs, value_of


def follow(operand: Node, dim: int, axis: Axis) -> StoredAxis:
    """What ``axis``, on dimension ``dim`` of ``operand``, lies on, largest first; raises ``CannotFollow``."""
    steps: dict[Node, Step] = {}
    followed: set[tuple[Node, Node]] = set()
    literals: dict[Literal, None] = {}
    pending = [Step(operand, dim, Fraction(1), axis)]
    while pending:
        step = pending.pop()
        known = steps.setdefault(step.node, step)
        if known != step:
            raise CannotFollow(f"reads `{step.node.name}` along two dimensions")
        if known is step and step.node.op != "placeholder":
            found = inputs_of(step)
            pending += found.steps
            followed.update((step.node, source.node) for source in found.steps)
            literals.update(dict.fromkeys(found.literals))
    nodes = sorted(steps)  # in graph order
    extent = value_of(operand).shape[dim]
    tensors = [_on_stored(steps[node], extent) for node in nodes if node.op == "placeholder"]
    constants = tuple(node for node in nodes if node.op != "placeholder")
    _require_no_whole_reader(constants, steps, followed)
    _require_the_largest(tensors, operand, axis)
    tensors.sort(key=lambda tensor: tensor.nbytes, reverse=True)
    unit = math.lcm(*(step.unit.numerator for step in steps.values()))
    return StoredAxis(axis, extent, tuple(tensors), constants, tuple(literals), unit)


def _require_no_whole_reader(
    constants: tuple[Node, ...], steps: Container[Node], followed: Container[tuple[Node, Node]]
) -> None:
    """What is cut for one reader must not be read along another dimension, or whole, by the next."""
    for node in constants:
        for source in node.all_input_nodes:
            if source in steps and (node, source) not in followed:
                raise CannotFollow(f"is also read whole by `{node.name}`")


def _on_stored(step: Step, features: int) -> TensorAxis:
    """The axis on a stored tensor that holds all of it and no padding; its last block may be shorter."""
    found, required = step.shape[step.dim], math.ceil(features / step.unit)
    if found != required:
        raise CannotFollow(
            f"has {found} parts along {step.axis.name} in `{step.node.name}`, where {required} hold all of it"
        )
    return TensorAxis(step.node, step.dim, step.unit.numerator)


def _require_the_largest(tensors: list[TensorAxis], operand: Node, axis: Axis) -> None:
    """An index may pick a row of scales for each feature, but the weight itself must be cut."""
    largest = stored_inputs(operand)[:1]
    if [tensor.node for tensor in tensors if tensor.node in largest] != largest:
        raise CannotFollow(f"picks its {axis.value} by an index, so that every rank needs all of it")
