"""The table of schemes: how a projection's weight is stored and multiplied. One file and one row each.

A scheme's ``match`` is called with a node that calls one of its operators. It decides, by operator and
dataflow, whether the node is a GEMM with a stored weight, and says what of it is cut along K, what travels
with the rows, how the partial product is spelled and what is added once after the sum (``Gemm``). Its second
argument tells which nodes depend on a token.
"""

from collections.abc import Callable

from torch.fx import Node

from oproj_pass.passes.gemm.gemm import Gemm
from oproj_pass.passes.gemm.schemes import int_mm, scaled_mm, w8a8, weight_only, weight_only_fused
from oproj_pass.passes.graph import ops

IsActivation = Callable[[Node], bool]
Match = Callable[[Node, IsActivation], Gemm | None]

SCHEMES: dict[str, Match] = {
    "npu::npu_quant_matmul": w8a8.match,
    "aten::_int_mm": int_mm.match,
    "aten::_scaled_mm": scaled_mm.match,
    "aten::_scaled_mm_v2": scaled_mm.match,
    "npu::npu_weight_quant_batchmatmul": weight_only_fused.match_npu,
    "aten::_weight_int8pack_mm": weight_only_fused.match_int8pack,
    **dict.fromkeys(weight_only_fused.PREPACKED, weight_only_fused.match_prepacked),
}


def match_gemm(node: Node, is_activation: IsActivation) -> Gemm | None:
    """The GEMM at ``node`` in any scheme; None if it is none, or its weight is made of more than inputs."""
    match = SCHEMES.get(ops.operator_name(node) or "", weight_only.match_dense_or_dequantised)
    return match(node, is_activation)
