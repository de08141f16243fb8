"""Whether a GEMM's weight may be replaced by its slices: what it is made of, and how it is called."""

import torch
from torch import Tensor
from torch.fx import Node

from oproj_pass.passes.gemm.axes import Axis
from oproj_pass.passes.gemm.following_step import CannotFollow
from oproj_pass.passes.gemm.gemm import Gemm, is_plain
from oproj_pass.passes.graph.effects import mutated_inputs, storage_owner
from oproj_pass.passes.graph.metadata import is_fake
from oproj_pass.passes.graph.provenance import nbytes, real_value, storage_of, value_of
from oproj_pass.passes.graph.symbols import statically_known_true


def weight_refusal(gemm: Gemm, axis: Axis = Axis.K) -> str | None:
    """Why the GEMM's weight cannot be replaced by its slices along an axis, None if it can."""
    if gemm.refusal is not None:
        return gemm.refusal
    if not is_plain(gemm):
        return "scales its product or bias (alpha or beta is not 1)"
    try:
        tensors = gemm.along(axis).tensors
    except CannotFollow as reason:
        return f"has a weight that {reason}"
    refusals = (tensor_refusal(tensor.node) for tensor in tensors)
    refusal = next((refusal for refusal in refusals if refusal), None)
    return refusal or _dtype_refusal(gemm) or _call_refusal(gemm) or _write_refusal(gemm)


def _call_refusal(gemm: Gemm) -> str | None:
    """A form speaks of the arguments that it knows; an operator's partial product keeps all the others."""
    form = gemm.form
    if form.partial is None:
        return None
    known = [position for position in (form.input, form.weight, form.bias) if position is not None]
    names = {name for _, name in known} | form.plain.keys() | {"out"}
    further = [*gemm.node.args[1 + max(index for index, _ in known) :], *(gemm.node.kwargs.keys() - names)]
    return f"is called with an argument that its form does not know ({further[0]})" if further else None


def _write_refusal(gemm: Gemm) -> str | None:
    for node in gemm.k.constants:
        if any(storage_owner(buffer).op in ("placeholder", "get_attr") for buffer in mutated_inputs(node)):
            return f"has a weight that `{node.name}` writes in place"
    buffers = list(mutated_inputs(gemm.node))
    if not buffers:
        return None
    if gemm.form.partial is None or len(buffers) > 1:
        return f"writes `{buffers[0].name}` in place, by an operator that is replaced as a whole"
    if not _is_shaped_like(buffers[0], gemm.node):
        return f"writes `{buffers[0].name}` in place, which has another shape than its product"
    return None


def _is_shaped_like(buffer: Node, product: Node) -> bool:
    shapes = value_of(buffer).shape, value_of(product).shape
    return len(shapes[0]) == len(shapes[1]) and all(
        statically_known_true(size == other) for size, other in zip(*shapes, strict=True)
    )


def tensor_refusal(node: Node) -> str | None:
    """Why a stored tensor cannot be replaced by a part of it, None if it can."""
    value, real = value_of(node), real_value(node)
    if not isinstance(value, Tensor) or any(isinstance(size, torch.SymInt) for size in value.shape):
        return "has no static weight shape in the graph's metadata"
    if (subclass := _dispatching_subclass(value if real is None else real)) is not None:
        return f"has a weight of type {subclass.__name__}, a tensor subclass with its own dispatch"
    if real is not None and storage_of(real).nbytes() > nbytes(node):
        return "has a weight that is a part of a larger storage, which cannot be released"
    return None


def _dtype_refusal(gemm: Gemm) -> str | None:
    product = value_of(gemm.node)
    if gemm.scheme in ("dense", "weight_only") and product is not None and not product.is_floating_point():
        return f"has a {product.dtype} product, a quantisation scheme that is not supported"
    return None


def _dispatching_subclass(tensor: Tensor) -> type | None:
    kind = type(tensor)
    own = kind.__torch_dispatch__ is not Tensor.__torch_dispatch__ and not is_fake(tensor)
    return kind if own else None
