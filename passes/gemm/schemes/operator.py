"""GEMMs that are one operator: the partial product is that operator on a rank's rows and parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch.fx import Graph, Node

from oproj_pass.passes.gemm.forms import GemmForm
from oproj_pass.passes.gemm.gemm import Gemm, summed_axis
from oproj_pass.passes.gemm.operand import on_matrix
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.provenance import value_of


@dataclass(frozen=True)
class OperatorGemm(Gemm):
    """A GEMM whose ``arguments``, by the names of the operator's schema, are kept but for those of a rank."""

    per_output: ClassVar[tuple[str, ...]] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def output_scales(self) -> Sequence[tuple[Node, int]]:
        """The arguments named in ``per_output``, each on its last dimension; one value serves all of H."""
        found = [self.arguments[name] for name in self.per_output]
        return [(scale, -1 % value_of(scale).dim()) for scale in found if _has_several(scale)]

    def emit_partial(
        self,
        graph: Graph,
        rows: Node,
        *row_scales: Node,
        bias: Node | None = None,
        out_features: int | None = None,
    ) -> Node:
        """Insert the operator on ``rows``, their scales and a rank's part of the weight."""
        scales = self.scale_arguments(graph, row_scales, out_features or value_of(self.node).shape[-1])
        arguments = {**self.arguments, self.form.input[1]: rows, **scales}
        if self.form.bias is not None:
            arguments[self.form.bias[1]] = bias
        return emit_call(graph, overload_of(self.node), arguments)

    def scale_arguments(self, graph: Graph, row_scales: Sequence[Node], out_features: int) -> dict[str, Any]:
        """The arguments that take the scales of rows from all ranks; schemes with row scales say which.

        ``out_features``: how many of H this rank computes.
        """
        return {}


def _has_several(scale: Any) -> bool:
    return isinstance(scale, Node) and value_of(scale).numel() > 1


def match_operator(
    node: Node, form: GemmForm, scheme: str, kind: type[OperatorGemm] = OperatorGemm
) -> OperatorGemm | None:
    """The GEMM at a node that calls the form's operator, if its weight is a stored matrix."""
    arguments = arguments_of(node)
    x, operand = arguments[form.input[1]], arguments[form.weight[1]]
    bias = arguments[form.bias[1]] if form.bias else None
    found = on_matrix(operand, form.contraction_dim)
    if found is None:
        return None
    weight, chain = found
    k = summed_axis(x, (weight,), chain)
    return kind(node, form, x, operand, bias, k, scheme, arguments=arguments)


def overload_of(node: Node) -> torch._ops.OpOverload:
    """The operator that a node calls, in its default overload."""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target
    namespace, name = str(ops.operator_name(node)).split("::")
    return getattr(getattr(torch.ops, namespace), name).default  # type: ignore[no-any-return]


def arguments_of(node: Node) -> dict[str, Any]:
    """Every argument of the operator that a node calls, by name; defaults where the call leaves them out."""
    arguments = {}
    for index, argument in enumerate(overload_of(node)._schema.arguments):
        given = node.kwargs.get(argument.name, argument.default_value)
        arguments[argument.name] = node.args[index] if index < len(node.args) else given
    return arguments


def emit_call(graph: Graph, operator: torch._ops.OpOverload, arguments: Mapping[str, Any]) -> Node:
    """Insert a call of ``operator`` with arguments by name."""
    schema = operator._schema.arguments
    args = tuple(arguments[argument.name] for argument in schema if not argument.kwarg_only)
    kwargs = {argument.name: arguments[argument.name] for argument in schema if argument.kwarg_only}
    return graph.call_function(operator, args, kwargs)
