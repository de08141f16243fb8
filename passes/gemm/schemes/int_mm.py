"""``torch._int_mm``: int8 times int8 to int32. The sum over ranks is exact; dequantisation stays behind it.

The scales multiply the int32 product on this rank's own tokens, as the model wrote it.
"""

from collections.abc import Callable

from torch.fx import Node

from oproj_pass.passes.gemm.forms import GemmForm
from oproj_pass.passes.gemm.gemm import Gemm
from oproj_pass.passes.gemm.schemes.operator import match_operator

_FORM = GemmForm("_int_mm", frozenset(), (0, "self"), (1, "mat2"), None, 0)


def match(node: Node, is_activation: Callable[[Node], bool]) -> Gemm | None:
    """The int8 GEMM at a call of ``_int_mm``."""
    return match_operator(node, _FORM, "int_mm")
