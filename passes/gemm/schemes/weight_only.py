"""Plain GEMMs whose weight is stored in few bits and dequantised in the graph, in whatever layout.

The layout is read from the graph: the summed dimension is followed through the dequantisation to the stored
words, scales, zero points and indices (``contraction``). Activations keep their type, and travel as they are.
"""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor
from torch.fx import Node

from oproj_pass.passes.gemm.axes import Axis, TensorAxis
from oproj_pass.passes.gemm.following import follow
from oproj_pass.passes.gemm.following_step import CannotFollow
from oproj_pass.passes.gemm.forms import GemmCall, gemm_call
from oproj_pass.passes.gemm.gemm import Gemm, dense_gemm, summed_axis
from oproj_pass.passes.graph.provenance import rank_of, stored_inputs, value_of


def match_dense_or_dequantised(node: Node, is_activation: Callable[[Node], bool]) -> Gemm | None:
    """The plain GEMM at ``node``: of a stored matrix, cast at most, or of one computed from constants."""
    call = gemm_call(node)
    if call is None:
        return None
    gemm = dense_gemm(node, call)
    if gemm is not None:
        return replace(gemm, scheme="weight_only") if _is_small(gemm.weight.node) else gemm
    if rank_of(call.matrix) != 2 or call.matrix.op == "placeholder":
        return None
    return _dequantised(node, call, is_activation)


def _dequantised(node: Node, call: GemmCall, is_activation: Callable[[Node], bool]) -> Gemm | None:
    stored = stored_inputs(call.matrix)
    if not stored or any((rank_of(source) or 0) > 2 for source in stored):
        return None
    if is_activation(call.matrix) and not any(map(_is_small, stored)):
        return None
    refusal, k = None, summed_axis(call.input, (TensorAxis(stored[0], 0),))
    try:
        k = follow(call.matrix, call.form.contraction_dim, Axis.K)
    except CannotFollow as reason:
        if is_activation(call.matrix):
            return None
        refusal = f"has a weight that {reason}"
    k = k.with_tensors((), call.copies)
    scheme = "weight_only" if _is_small(k.tensors[0].node) else "dense"
    return Gemm(node, call.form, call.input, call.matrix, call.bias, k, scheme, refusal=refusal)


def _is_small(node: Node) -> bool:
    """Whether the stored elements are quantised: integers, or floating numbers of one byte."""
    value = value_of(node)
    return isinstance(value, Tensor) and (not value.is_floating_point() or value.element_size() < 2)
