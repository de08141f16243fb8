"""What may be done with a weight that has no values, and the error for anything else."""

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import distributed_c10d

from oproj_pass.eager import eager_cause, within_model_call
from oproj_pass.errors import EagerStepError, WeightReleasedError
from oproj_pass.weights.shard import Shard

_REMEDY = (
    "Use oproj_pass.full_state_dict(model) on every rank to gather full weights back, or compile with "
    "release_weights=False to keep them."
)
_MERGE = (
    "To change it (merge an adapter into it), do so before the model's first compiled step; or gather the "
    "full weights with oproj_pass.full_state_dict(model) on every rank, change those, and give them back by "
    "model.load_state_dict, of which each rank takes its slice. release_weights=False keeps full weights."
)


def _getters(*names: str) -> frozenset[Callable[..., Any]]:
    return frozenset(getattr(Tensor, name).__get__ for name in names)


METADATA = _getters(
    "shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "grad", "grad_fn",
    "is_cuda", "is_cpu", "is_meta", "is_sparse", "is_sparse_csr", "is_quantized", "is_nested", "is_mkldnn",
    "is_xpu", "is_mps", "nbytes", "itemsize", "_version", "output_nr", "_base", "_backward_hooks",
) | {
    Tensor.requires_grad.__set__,  # type: ignore[attr-defined]
    Tensor.grad.__set__,  # type: ignore[union-attr]
    Tensor.requires_grad_,
    Tensor.size, Tensor.dim, Tensor.ndimension, Tensor.numel, Tensor.nelement,
    Tensor.stride, Tensor.element_size, Tensor.storage_offset, Tensor.is_contiguous,
    Tensor.untyped_storage, Tensor.is_floating_point, Tensor.is_complex,
    Tensor.get_device, Tensor.is_inference, Tensor.is_conj, Tensor.is_neg,
    Tensor._is_view, Tensor._is_zerotensor, Tensor.dim_order, Tensor.__len__,
    Tensor.__hash__, torch.is_floating_point, torch.is_complex, torch.numel,
    torch._has_compatible_shallow_copy_type,
}  # fmt: skip
GET_DATA, SET_DATA = Tensor.data.__get__, Tensor.data.__set__  # type: ignore[attr-defined]
_STEPS = {
    F.linear, torch.addmm, torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.addmm,
    Tensor.__matmul__, Tensor.__rmatmul__, Tensor.t, torch.t, Tensor.T.__get__,  # type: ignore[attr-defined]
    torch._int_mm, torch._scaled_mm, torch._scaled_mm_v2, F.embedding, torch.embedding,
}  # fmt: skip
_CONVERSIONS = {"to", "type", "float", "double", "half", "bfloat16", "cpu", "cuda", "npu"}
_CHANGES = {
    f"{mark}{name}{end}"
    for name in ("add", "sub", "mul", "div", "lerp", "addmm", "addcmul", "baddbmm")
    for mark, end in (("", ""), ("", "_"), ("__", "__"), ("__i", "__"), ("__r", "__"))
}


def is_conversion(func: Callable[..., Any]) -> bool:
    """Whether ``func`` gives a tensor another type or device, as ``Module.to`` does to every weight."""
    name = getattr(func, "__name__", "")
    return name in _CONVERSIONS and getattr(Tensor, name, None) is func


def is_collective(func: Callable[..., Any]) -> bool:
    """Whether torch.distributed asks, which hands the tensor to C++ next; to be called by Python's hook.

    It brings some arguments as those of a function of its own, and asks others for their metadata.
    """
    caller = sys._getframe(2).f_globals
    return getattr(func, "__module__", None) == distributed_c10d.__name__ or caller is vars(distributed_c10d)


def refusal(func: Callable[..., Any], shard: Shard) -> EagerStepError | WeightReleasedError:
    """The error for a use of the full weight: a step outside its graph, a change, or another read."""
    is_operator = isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket)  # npu_quant_matmul
    if (is_operator or func in _STEPS) and within_model_call():
        return EagerStepError(
            f"{shard.describe()}: this projection is sharded and was about to run eager: {eager_cause()} "
            "An eager step may bring another token count than its peers and hang the collectives, so it is "
            "refused."
        )
    name = name_of(func)
    remedy = _MERGE if is_operator or func in _STEPS or name in _CHANGES else _REMEDY
    return WeightReleasedError(
        f"{shard.describe()}: `{name}` needs the full weight, which was released. {remedy}"
    )


def collective_refusal(shard: Shard) -> WeightReleasedError:
    """The error for a collective into or from the full weight."""
    return WeightReleasedError(
        f"{shard.describe()}: a collective of torch.distributed needs the full weight, which was released. "
        f"To send new values to a sharded model, receive them in a tensor of their own and write that with "
        f"weight.data.copy_ or model.load_state_dict. {_REMEDY}"
    )


def name_of(func: Callable[..., Any]) -> str:
    """The name of a function or of the property behind a getter or setter."""
    name = getattr(func, "__name__", str(func))
    return str(func.__self__.__name__) if name in ("__get__", "__set__") else str(name)  # type: ignore[attr-defined]
