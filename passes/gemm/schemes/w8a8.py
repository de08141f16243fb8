"""W8A8 on Ascend: ``npu_quant_matmul`` of int8 rows, quantised before the exchange, with an int8 weight.

Static: ``npu_quantize`` with stored scales. Dynamic: ``npu_dynamic_quant``, whose scale of each row goes
with the row as ``pertoken_scale``. The weight's channelwise scale [H] is on every rank, since it multiplies
partial sums as it does whole ones. An int32 bias counts in units of the scales: it is scaled, and added once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, Node

from oproj_pass.passes.gemm.forms import GemmForm
from oproj_pass.passes.gemm.gemm import Gemm, RowScale
from oproj_pass.passes.gemm.schemes.operator import OperatorGemm, match_operator
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.provenance import value_of

aten = torch.ops.aten
_FORM = GemmForm("npu_quant_matmul", frozenset(), (0, "x1"), (1, "x2"), (5, "bias"), 0)


@dataclass(frozen=True)
class QuantMatmul(OperatorGemm):
    """A call of ``npu_quant_matmul``."""

    per_output = ("scale", "offset")

    def scale_arguments(self, graph: Graph, row_scales: Sequence[Node], out_features: int) -> dict[str, Any]:
        """The rows' scales, if they have any."""
        return {"pertoken_scale": row_scales[0]} if row_scales else {}

    def add_bias(self, graph: Graph, y: Node) -> Node:
        """Add the bias, in float32 and with its scales if it is an int32, and round to the product's type."""
        if self.bias is None:
            return y
        term = self.bias
        if value_of(term).dtype == torch.int32:
            scale = graph.call_function(aten.to.dtype, (self.float_scale, torch.float32))
            term = graph.call_function(aten.mul.Tensor, (term, scale))
            for row_scale in self.row_scales:
                mine = graph.call_function(aten.reshape.default, (row_scale.node, [-1, 1]))
                term = graph.call_function(aten.mul.Tensor, (term, mine))
        y = graph.call_function(aten.add.Tensor, (y, term))
        return graph.call_function(aten.to.dtype, (y, value_of(self.node).dtype))

    @property
    def float_scale(self) -> Node:
        """The weight's scale as floating numbers, before ``npu_trans_quant_param`` packed it."""
        scale: Node = self.arguments["scale"]
        is_packed = ops.operator_name(scale) == "npu::npu_trans_quant_param"
        return scale.args[0] if is_packed else scale  # type: ignore[return-value]


def match(node: Node, is_activation: Callable[[Node], bool]) -> Gemm | None:
    """The GEMM at a call of ``npu_quant_matmul``."""
    gemm = match_operator(node, _FORM, "w8a8_static", QuantMatmul)
    if not isinstance(gemm, QuantMatmul):
        return None
    row_scale = gemm.arguments["pertoken_scale"]
    if row_scale is not None and is_activation(row_scale):
        gemm = replace(gemm, scheme="w8a8_dynamic", row_scales=(RowScale(row_scale),))
    return replace(gemm, refusal=_refusal(gemm))


def _refusal(gemm: QuantMatmul) -> str | None:
    weight, product = value_of(gemm.weight.node), value_of(gemm.node)
    if any(gemm.arguments["group_sizes"] or ()):
        return f"has scales for groups of {list(gemm.arguments['group_sizes'])}, which npu_quant_matmul packs"
    if weight is not None and weight.element_size() != 1:
        return f"has a weight packed into {weight.dtype} words, whose input features cannot be told apart"
    if product is not None and not product.is_floating_point():
        return f"has its product rounded to {product.dtype}, which cannot be summed over ranks"
    is_scaled = gemm.bias is not None and value_of(gemm.bias).dtype == torch.int32
    if is_scaled and not value_of(gemm.float_scale).is_floating_point():
        return "has an int32 bias in units of a packed scale: pack it in `forward` (npu_trans_quant_param)"
    return None
