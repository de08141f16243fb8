"""The table of schemes: how a projection's weight is stored and multiplied. One file and one row each.

A scheme's ``match`` is called with a node that calls one of its operators. It decides, by operator and
dataflow, whether the node is a GEMM with a stored weight, and says what of it is cut along K, what travels
with the rows, how the partial product is spelled and what is added once after the sum (``Gemm``).
"""

from collections.abc import Callable

from torch.fx import Node

from oproj_pass.passes import gemm, ops
from oproj_pass.passes.gemm import Gemm
from oproj_pass.passes.schemes import int_mm, w8a8

Match = Callable[[Node], Gemm | None]

SCHEMES: dict[str, Match] = {
    "npu::npu_quant_matmul": w8a8.match,
    "aten::_int_mm": int_mm.match,
}


def match_gemm(node: Node) -> Gemm | None:
    """The GEMM at ``node`` in any scheme; None if it is none, or its weight is made of more than inputs."""
    match = SCHEMES.get(ops.operator_name(node) or "", gemm.match_gemm)
    return match(node)
