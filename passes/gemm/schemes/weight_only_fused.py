"""Weight-only operators that dequantise inside: where each keeps weight, scales and bias.

A weight that is packed for one kernel's tiles is refused: its features cannot be told apart any more.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch.fx import Node

from oproj_pass.passes.gemm.axes import Axis, StoredAxis, TensorAxis
from oproj_pass.passes.gemm.forms import GemmForm
from oproj_pass.passes.gemm.gemm import Gemm, summed_axis
from oproj_pass.passes.gemm.operand import on_matrix
from oproj_pass.passes.gemm.schemes.operator import OperatorGemm, arguments_of, match_operator
from oproj_pass.passes.graph.provenance import stored_inputs, value_of

_NPU = GemmForm("npu_weight_quant_batchmatmul", frozenset(), (0, "x"), (1, "weight"), (6, "bias"), 0)
_INT8PACK = GemmForm("_weight_int8pack_mm", frozenset(), (0, "self"), (1, "mat2"), None, 1)
_INT4PACK = GemmForm("_weight_int4pack_mm", frozenset(), (0, "self"), (1, "mat2"), None, 1)
_WORD = 8  # int4 in an int32

PREPACKED = (
    "aten::_weight_int4pack_mm",
    "aten::_weight_int4pack_mm_for_cpu",
    "aten::_weight_int4pack_mm_with_scales_and_zeros",
)


class Int8Pack(OperatorGemm):
    """A call of ``_weight_int8pack_mm``."""

    per_output = ("scales",)


class WeightQuantBatchMatmul(OperatorGemm):
    """A call of ``npu_weight_quant_batchmatmul``."""

    per_output = ("antiquant_scale", "antiquant_offset")

    def along(self, axis: Axis) -> StoredAxis:
        """As for any GEMM; a word of int4 along H holds eight of its features."""
        found, features = super().along(axis), value_of(self.node).shape[-1]
        if axis is Axis.K or found.extent == features:
            return found
        words, *scales = found.tensors
        return replace(found, extent=features, tensors=(replace(words, unit=_WORD), *scales))


def match_int8pack(node: Node, is_activation: Callable[[Node], bool]) -> Gemm | None:
    """``_weight_int8pack_mm``: int8 [H, K] with a scale of every output channel."""
    return match_operator(node, _INT8PACK, "weight_only", Int8Pack)


def match_npu(node: Node, is_activation: Callable[[Node], bool]) -> Gemm | None:
    """``npu_weight_quant_batchmatmul``: int8, or int4 in words, with scales of channels or of groups."""
    gemm = match_operator(node, _NPU, "weight_only", WeightQuantBatchMatmul)
    if gemm is None:
        return None
    weight, words = gemm.weight, value_of(gemm.operand)
    if words.dtype == torch.int32 and words.shape[0] * _WORD == value_of(gemm.input).shape[-1]:
        gemm = replace(gemm, k=replace(gemm.k, tensors=(replace(weight, unit=_WORD),)))
    if gemm.arguments["quant_scale"] is not None:
        return replace(gemm, refusal="has its product rounded to int8, which cannot be summed over ranks")
    group = gemm.arguments["antiquant_group_size"]
    return _with_groups(gemm, group) if group else gemm


def _with_groups(gemm: OperatorGemm, group: int) -> OperatorGemm:
    """Cut the rows of scales and offsets too, one row a group."""
    for name in ("antiquant_scale", "antiquant_offset"):
        if (scale := gemm.arguments[name]) is None:
            continue
        if (found := on_matrix(scale, 0)) is None:
            return replace(gemm, refusal=f"has an `{name}` that is computed from more than one stored tensor")
        rows, chain = found
        gemm = replace(gemm, k=gemm.k.with_tensors([replace(rows, unit=group)], chain))
    return gemm


def match_prepacked(node: Node, is_activation: Callable[[Node], bool]) -> Gemm | None:
    """An int4 weight in the tiles of one kernel: known, and refused."""
    arguments = arguments_of(node)
    x, operand = arguments["self"], arguments["mat2"]
    stored = stored_inputs(operand)
    if not stored or (is_activation(operand) and operand.op != "placeholder"):
        return None
    reason = f"is packed for `{_INT4PACK.name}`, whose tiles mix its input features: shard before packing"
    k = summed_axis(x, (TensorAxis(stored[0], 0),))
    return Gemm(node, _INT4PACK, x, operand, None, k, "weight_only", refusal=f"has a weight that {reason}")
