"""Follows a GEMM's summed dimension from its operand back to the stored tensors that the operand is made of.

A weight that is dequantised in the graph is a function of constants: values, scales, zero points, indices.
One walk, from the operand down:

1. At each node, know on which dimension K lies, and how many features one index there stands for (its unit).
2. Step to its inputs by the operation's rule (``contraction_rules``).
3. At a placeholder, note the cut. An input on which K does not lie is the same on every rank.

Literal sizes on the way (``view``, ``expand``) are noted too, since they shrink with K. An
operation without a rule, or one that scatters a rank's features over the whole tensor, is a refusal.
"""

import math
from collections.abc import Container
from dataclasses import dataclass
from fractions import Fraction

from torch.fx import Node

from oproj_pass.passes.contraction_rules import inputs_of
from oproj_pass.passes.contraction_step import CannotFollow, Step
from oproj_pass.passes.literals import Literal
from oproj_pass.passes.provenance import stored_inputs, value_of
from oproj_pass.passes.slices import WeightSlice


@dataclass(frozen=True)
class Contraction:
    """What an operand is made of: cut tensors (the largest first), nodes in between, sizes that shrink.

    ``unit``: features that stay together somewhere on the way, as a view in groups of them makes them.
    """

    slices: tuple[WeightSlice, ...]
    constants: tuple[Node, ...]
    literals: tuple[Literal, ...]
    unit: int = 1


def follow(operand: Node, dim: int) -> Contraction:
    """Everything that is cut along dimension ``dim`` of ``operand``; raises ``CannotFollow``."""
    steps: dict[Node, Step] = {}
    followed: set[tuple[Node, Node]] = set()
    literals: dict[Literal, None] = {}
    pending = [Step(operand, dim, Fraction(1))]
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
    nodes = [node for node in operand.graph.nodes if node in steps]
    slices = [_cut(steps[node], value_of(operand).shape[dim]) for node in nodes if node.op == "placeholder"]
    constants = tuple(node for node in nodes if node.op != "placeholder")
    _require_no_whole_reader(constants, steps, followed)
    _require_the_largest(slices, operand)
    slices.sort(key=lambda cut: cut.nbytes, reverse=True)
    unit = math.lcm(*(step.unit.numerator for step in steps.values()))
    return Contraction(tuple(slices), constants, tuple(literals), unit)


def _require_no_whole_reader(
    constants: tuple[Node, ...], steps: Container[Node], followed: Container[tuple[Node, Node]]
) -> None:
    """What is cut for one reader must not be read along another dimension, or whole, by the next."""
    for node in constants:
        for source in node.all_input_nodes:
            if source in steps and (node, source) not in followed:
                raise CannotFollow(f"is also read whole by `{node.name}`")


def _cut(step: Step, features: int) -> WeightSlice:
    """The cut of a stored tensor that holds K and no padding; its last block may be shorter."""
    found, required = step.shape[step.dim], math.ceil(features / step.unit)
    if found != required:
        raise CannotFollow(
            f"has {found} parts along K in `{step.node.name}`, where {required} hold all of it"
        )
    return WeightSlice(step.node, step.dim, step.unit.numerator)


def _require_the_largest(slices: list[WeightSlice], operand: Node) -> None:
    """An index may pick a row of scales for each feature, but the weight itself must be cut."""
    largest = stored_inputs(operand)[:1]
    if [cut.node for cut in slices if cut.node in largest] != largest:
        raise CannotFollow("picks its input features by an index, so that every rank needs all of it")
