"""A recognised GEMM: what it multiplies, what its axes lie on, and how a part of it is computed."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Graph, Node

from oproj_pass.passes.gemm.axes import Axis, StoredAxis, TensorAxis
from oproj_pass.passes.gemm.following import follow
from oproj_pass.passes.gemm.following_step import CannotFollow
from oproj_pass.passes.gemm.forms import GemmCall, GemmForm
from oproj_pass.passes.gemm.operand import on_matrix
from oproj_pass.passes.graph.provenance import value_of

aten = torch.ops.aten


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

    def bias_along_output(self) -> StoredAxis | None:
        """What H lies on behind the bias; None without one, or where it is not one value a feature."""
        bias, features = self.bias, value_of(self.node).shape[-1]
        if bias is None or value_of(bias).shape != (features,):
            return None
        try:
            return follow(bias, 0, Axis.H)
        except CannotFollow:
            return None

    def emit_partial(
        self,
        graph: Graph,
        rows: Node,
        *row_scales: Node,
        bias: Node | None = None,
        out_features: int | None = None,
    ) -> Node:
        """Insert the product of ``rows`` with the operand, of which a rank may hold a part.

        ``bias``: what the operator adds, if anything. ``out_features``: how many of H it computes, all if
        None.
        """
        if bias is None:
            return graph.call_function(self.form.partial, (rows, self.operand))
        arguments: dict[int, Node] = {self.form.input[0]: rows, self.form.weight[0]: self.operand}
        assert self.form.bias is not None
        arguments[self.form.bias[0]] = bias
        return graph.call_function(self.form.biased, tuple(arguments[index] for index in range(3)))

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


def is_plain(gemm: Gemm) -> bool:
    """Whether the form's scaling arguments have their neutral values."""
    return all(gemm.node.kwargs.get(name, neutral) == neutral for name, neutral in gemm.form.plain.items())
