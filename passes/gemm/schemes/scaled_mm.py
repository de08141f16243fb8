"""float8: ``torch._scaled_mm`` and ``torch.nn.functional.scaled_mm`` with scales of tensors, rows or blocks.

The rows travel as bytes and the partial products are summed in the product's own type, never as float8.
A stored scale of the whole input is on every rank. One that is computed differs by rank, so it becomes one a
row, and travels; the product is then scaled by rows. Scales of blocks go with their features, and the
weight's rows of block scales are cut as its features are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, Node

from oproj_pass.passes.gemm.axes import Axis, StoredAxis
from oproj_pass.passes.gemm.forms import GemmForm
from oproj_pass.passes.gemm.gemm import Gemm, RowScale
from oproj_pass.passes.gemm.operand import on_matrix
from oproj_pass.passes.gemm.schemes.operator import OperatorGemm, match_operator
from oproj_pass.passes.graph.provenance import value_of

aten = torch.ops.aten
_FORM = GemmForm("_scaled_mm", frozenset(), (0, "self"), (1, "mat2"), (4, "bias"), 0)
_BLOCK = 128  # features of a block: the only size that torch has with float32 scales
_KINDS = {0: "tensor", 1: "row", 4: "block", 5: "square"}  # torch.nn.functional.ScalingType


@dataclass(frozen=True)
class ScaledMM(OperatorGemm):
    """A call of ``_scaled_mm``, or of its second version: lists of scales, whose kinds it names."""

    @property
    def is_second_version(self) -> bool:
        """Whether the call names its kinds of scales."""
        return "recipe_a" in self.arguments

    @property
    def scale_a(self) -> Node:
        """The scale of the rows."""
        scale = self.arguments["scale_a"]
        return scale[0] if self.is_second_version else scale  # type: ignore[no-any-return]

    @property
    def scale_b(self) -> Node:
        """The scale of the weight."""
        scale = self.arguments["scale_b"]
        return scale[0] if self.is_second_version else scale  # type: ignore[no-any-return]

    def along(self, axis: Axis) -> StoredAxis:
        """As for any GEMM; an index of block scales stands for a block of H."""
        found = super().along(axis)
        if axis is Axis.K or self.scheme != "scaled_mm_block":
            return found
        weight, *scales = found.tensors
        is_by_rows = value_of(self.scale_b).shape[0] == found.extent
        return (
            found
            if is_by_rows
            else replace(found, tensors=(weight, *(replace(scale, unit=_BLOCK) for scale in scales)))
        )

    def output_scales(self) -> Sequence[tuple[Node, int]]:
        """The weight's scale, if it has several: [1, H], [H, K/128] or [K/128, H/128]."""
        scale = value_of(self.scale_b)
        if scale.numel() == 1:
            return ()
        return ((self.scale_b, 0 if scale.shape[0] == value_of(self.node).shape[-1] else 1),)

    def scale_arguments(self, graph: Graph, row_scales: Sequence[Node], out_features: int) -> dict[str, Any]:
        """The scales of all ranks' rows, and the weight's in the form that goes with them."""
        if not row_scales:
            return {}
        if self.row_scales[0].features is not None:
            return self._arguments(_laid_out_like(graph, row_scales[0], self.scale_a), self.scale_b)
        scale_a = graph.call_function(aten.reshape.default, (row_scales[0], [-1, 1]))
        scale_b = self.scale_b
        if value_of(scale_b).numel() == 1:
            scale_b = graph.call_function(aten.reshape.default, (scale_b, [1, 1]))
            scale_b = graph.call_function(aten.expand.default, (scale_b, [1, out_features]))
            scale_b = graph.call_function(aten.contiguous.default, (scale_b,))
        kinds = {"recipe_a": [1], "recipe_b": [1]} if self.is_second_version else {}
        return self._arguments(scale_a, scale_b) | kinds

    def _arguments(self, scale_a: Node, scale_b: Node) -> dict[str, Any]:
        if self.is_second_version:
            return {"scale_a": [scale_a], "scale_b": [scale_b]}
        return {"scale_a": scale_a, "scale_b": scale_b}


def match(node: Node, is_activation: Callable[[Node], bool]) -> Gemm | None:
    """The float8 GEMM at a call of either version."""
    gemm = match_operator(node, _FORM, "scaled_mm", ScaledMM)
    if not isinstance(gemm, ScaledMM):
        return None
    if (refusal := _refusal(gemm)) is not None:
        return replace(gemm, refusal=refusal)
    kind, kind_b = _kinds(gemm)
    gemm = replace(gemm, scheme=f"scaled_mm_{kind}")
    if kind == "block":
        return _with_blocks(gemm, kind_b)
    is_computed = is_activation(gemm.scale_a)
    return replace(gemm, row_scales=(RowScale(gemm.scale_a),) if is_computed else ())


def _kinds(gemm: ScaledMM) -> tuple[str, str]:
    if gemm.is_second_version:
        recipes = gemm.arguments["recipe_a"][0], gemm.arguments["recipe_b"][0]
        return _KINDS.get(recipes[0], "other"), _KINDS.get(recipes[1], "other")
    scale_a, scale_b = value_of(gemm.scale_a), value_of(gemm.scale_b)
    if scale_a.numel() == 1:
        return "tensor", "tensor"
    is_row = scale_a.shape[-1] == 1 and scale_b.shape[-1] == value_of(gemm.node).shape[-1]
    return ("row", "row") if is_row else ("block", "square")


def _refusal(gemm: ScaledMM) -> str | None:
    arguments, product = gemm.arguments, value_of(gemm.node)
    if product.element_size() < 2:
        return f"has its product rounded to {product.dtype}, which cannot be summed over ranks"
    lists = [arguments.get(name, ()) for name in ("scale_a", "scale_b")] if gemm.is_second_version else []
    swizzled = any((*arguments.get("swizzle_a", ()), *arguments.get("swizzle_b", ())))
    if swizzled or any(len(scales) > 1 for scales in lists) or "other" in _kinds(gemm):
        return "has block scales in a layout of its device, whose input features cannot be told apart"
    if any(value_of(scale).dtype != torch.float32 for scale in (gemm.scale_a, gemm.scale_b)):
        return f"has {value_of(gemm.scale_b).dtype} scales, a quantisation scheme that is not supported"
    if arguments.get("contraction_dim"):
        return "names the dimension that it sums over"
    return None


def _with_blocks(gemm: ScaledMM, kind_b: str) -> ScaledMM:
    """Cut the weight's block scales too; the second version pads those of square blocks to fours."""
    by_rows = kind_b == "block"  # [H, K/128] there, [K/128, H/128] for square blocks
    found_scale = on_matrix(gemm.scale_b, 1 if by_rows else 0)
    if found_scale is None:
        return replace(gemm, refusal="has block scales that are computed from more than one stored tensor")
    scale, chain = found_scale
    blocks = -(-int(value_of(gemm.input).shape[-1]) // _BLOCK)
    found = value_of(scale.node).shape[scale.dim]
    if found != blocks:
        return replace(gemm, refusal=f"has {found} rows of block scales for {blocks} blocks of {_BLOCK}")
    unit = 4 * _BLOCK if gemm.is_second_version and not by_rows else _BLOCK
    return replace(
        gemm,
        k=gemm.k.with_tensors([replace(scale, unit=unit)], chain),
        row_scales=(RowScale(gemm.scale_a, features=_BLOCK),),
    )


def _laid_out_like(graph: Graph, scale: Node, original: Node) -> Node:
    """The scales in the order of memory that the kernel was given: column by column, if that was it."""
    if value_of(original).stride()[0] != 1:
        return scale
    columns = graph.call_function(aten.t.default, (scale,))
    columns = graph.call_function(aten.contiguous.default, (columns,))
    return graph.call_function(aten.t.default, (columns,))
