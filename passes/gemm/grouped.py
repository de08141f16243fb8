"""A product with a matrix for each group of features: ``y [.., G, r] = x [.., G, d] @ w [G, d, r]``.

DeepSeek-V4 projects the heads of an attention so, group by group, before one GEMM joins the groups. No group
needs another one's: here is where the axes of such a product lie, and how a rank computes its part of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import lcm

import torch
from torch import Tensor
from torch.fx import Graph, Node

from oproj_pass.passes.gemm.axes import Axis, StoredAxis, TensorAxis
from oproj_pass.passes.gemm.following import follow
from oproj_pass.passes.gemm.following_step import CannotFollow
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.provenance import rank_of, value_of

aten = torch.ops.aten

_BATCHED = ops.targets("bmm", "matmul")
_PRODUCTS = _BATCHED | ops.EINSUM


@dataclass(frozen=True)
class GroupedProduct:
    """The product at ``node`` of an ``input`` with an ``operand`` that is made of graph inputs alone.

    Letters name the dimensions of both and of the result (``output_letters``) as in an einsum; ``group``,
    ``summed`` and ``produced`` are those of G, d and r, all others stand for rows.
    """

    node: Node
    input: Node
    operand: Node
    input_letters: str
    operand_letters: str
    output_letters: str
    group: str
    summed: str
    produced: str

    @property
    def groups(self) -> int:
        """G."""
        return self._extent(self.group)

    @property
    def group_features(self) -> int:
        """r, the features that a group produces."""
        return self._extent(self.produced)

    @property
    def input_features(self) -> int:
        """G x d, the features that a row brings to all groups."""
        return self.groups * self._extent(self.summed)

    @property
    def rows(self) -> str:
        """The letters of rows, in the order of the input's dimensions."""
        return "".join(letter for letter in self.input_letters if letter not in (self.group, self.summed))

    def along_output(self) -> StoredAxis:
        """What the G x r features it makes lie on, a whole number of groups together.

        Raises ``CannotFollow`` where that cannot be told.
        """
        groups = follow(self.operand, self.operand_letters.index(self.group), Axis.H)
        features = self.groups * self.group_features
        tensors = tuple(_in_features(tensor, features) for tensor in groups.tensors)
        together = lcm(groups.kept_together * self.group_features, *(tensor.unit for tensor in tensors))
        return replace(groups, extent=features, tensors=tensors, kept_together=together)

    def emit_rows(self, graph: Graph, leading: Sequence[int]) -> Node:
        """Insert the input as rows [.., G x d] with the sizes ``leading``, one of which may be -1."""
        order = [self.input_letters.index(letter) for letter in (*self.rows, self.group, self.summed)]
        rows = graph.call_function(aten.permute.default, (self.input, order))
        return graph.call_function(aten.reshape.default, (rows, [*leading, self.input_features]))

    def emit_part(self, graph: Graph, rows: Node, size: int) -> Node:
        """Insert the product of ``rows`` [T, G/size x d] with my groups of the operand: [G/size, T, r]."""
        features = self.input_features // self.groups
        by_group = graph.call_function(aten.reshape.default, (rows, [-1, self.groups // size, features]))
        by_group = graph.call_function(aten.permute.default, (by_group, [1, 0, 2]))
        order = [self.operand_letters.index(letter) for letter in (self.group, self.summed, self.produced)]
        operand = self.operand
        if order != [0, 1, 2]:
            operand = graph.call_function(aten.permute.default, (operand, order))
        return graph.call_function(aten.bmm.default, (by_group, operand))

    def _extent(self, letter: str) -> int:
        return value_of(self.operand).shape[self.operand_letters.index(letter)]  # type: ignore[no-any-return]


def _in_features(tensor: TensorAxis, features: int) -> TensorAxis:
    """How many of the features one index of a stored tensor stands for, instead of how many groups."""
    size = value_of(tensor.node).shape[tensor.dim]
    if features % size:
        raise CannotFollow(f"has {size} parts of its groups in `{tensor.node.name}`, which are not equal")
    return replace(tensor, unit=features // size)


def match_grouped(node: Node, is_constant: Callable[[Node], bool]) -> GroupedProduct | None:
    """The grouped product at ``node``: of an activation with a constant of several matrices; else None."""
    spelled = _spelled(node)
    if spelled is None:
        return None
    operands, terms, output = spelled
    constants = [is_constant(operand) for operand in operands]
    if sum(constants) != 1 or not _is_floating(node) or not all(map(_is_floating, operands)):
        return None
    place = constants.index(True)
    x, weight = terms[1 - place], terms[place]
    group, summed, produced = (
        [letter for letter in weight if (letter in x, letter in output) == kind]
        for kind in ((True, True), (True, False), (False, True))
    )
    rows = [letter for letter in x if letter not in weight]
    one_each = len(group) == len(summed) == len(produced) == 1 and len(weight) == 3
    if not one_each or not rows or sorted(output) != sorted([*rows, *group, *produced]):
        return None
    found = GroupedProduct(
        node, operands[1 - place], operands[place], x, weight, output, group[0], summed[0], produced[0]
    )
    return found if found.groups > 1 else None


def _spelled(node: Node) -> tuple[list[Node], list[str], str] | None:
    """A product's operands, and the letters of their dimensions and of the result's."""
    if ops.operation(node) not in _PRODUCTS or node.kwargs:
        return None
    if ops.operation(node) in _BATCHED:
        operands, terms, output = list(node.args), ["abc", "acd"], "abd"
    elif len(node.args) >= 2:
        listed = node.args[1]
        operands = list(listed) if isinstance(listed, list | tuple) else list(node.args[1:])
        inputs, arrow, output = str(node.args[0]).replace(" ", "").partition("->")
        terms = inputs.split(",") if arrow else []
    else:
        return None
    if len(operands) != 2 or len(terms) != 2 or not all(isinstance(operand, Node) for operand in operands):
        return None
    letters = [term for term in (*terms, output) if term.isalpha() and len({*term}) == len(term)]
    ranks = [rank_of(operand) for operand in operands]  # type: ignore[arg-type]
    fits = len(letters) == 3 and [len(term) for term in terms] == ranks
    return (operands, terms, output) if fits else None  # type: ignore[return-value]


def _is_floating(node: Node) -> bool:
    value = value_of(node)
    return isinstance(value, Tensor) and value.is_floating_point()
