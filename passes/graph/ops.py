"""Which family an FX node's operation belongs to, on a Dynamo graph and on an ATen graph alike.

One name stands for every form in which a graph may hold the operation: the Python function
(``torch.softmax``, ``operator.mul``), the tensor method (a string target) and the ATen packet. The
families decide only what the dataflow search walks through; none of them is ever rewritten.
"""

import operator
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

# Operators that torch_npu puts in ATen's place while it traces; they exist only where it is loaded.
ASCEND_DIALECT = {
    "npu::_npu_dtype_cast": torch.ops.aten._to_copy,
    "npu::npu_dtype_cast": torch.ops.aten._to_copy,
    "npu::npu_transpose_batchmatmul": torch.ops.aten.bmm,
    "npu::npu_rms_norm": torch.ops.aten.rms_norm,
}

_FUNCTIONALIZED = (torch.ops.higher_order.auto_functionalized, torch.ops.higher_order.auto_functionalized_v2)
_NAMESPACES = (torch, torch.Tensor, torch._C._nn, F, torch.special, operator)


def targets(*names: str) -> frozenset[Any]:
    """Every node target that performs one of the named operations, in place or not."""
    return frozenset(target for name in names for form in (name, f"{name}_") for target in _forms(form))


def _forms(name: str) -> Iterable[Any]:
    yield name  # the target of a call_method node
    for namespace in (*_NAMESPACES, torch.ops.aten):
        form = getattr(namespace, name, None)
        if form is not None:
            yield form


def operation(node: Node) -> Any:
    """The node's target with an ATen overload reduced to its packet, for membership in a family.

    None where the node calls no function and no method: an input or a module may have any name.
    """
    if node.op not in ("call_function", "call_method"):
        return None
    target = node.target
    return _packet(target) if isinstance(target, torch._ops.OpOverload) else target


def functionalized_operation(node: Node) -> Any:
    """The same, for the operator inside ``auto_functionalized``."""
    found = operation(node)
    return packet(node.args[0]) if found in _FUNCTIONALIZED else found


def is_overload(target: Any) -> bool:
    """Whether a target is one overload of an ATen or custom operator."""
    return isinstance(target, torch._ops.OpOverload)


def packet(target: Any) -> Any:
    """An ATen or custom operator's packet, of Ascend's ATen equivalents ATen's; any other target as it is."""
    return _packet(target) if is_overload(target) else target


@lru_cache(maxsize=4096)  # a graph calls few targets in tens of thousands of nodes
def _packet(overload: torch._ops.OpOverload) -> Any:
    return ASCEND_DIALECT.get(overload.overloadpacket._qualified_op_name, overload.overloadpacket)


def operator_name(node: Node) -> str | None:
    """The qualified name of the operator that a node calls, as ``"aten::_int_mm"``; None for any other."""
    return _qualified_name(operation(node))


@lru_cache(maxsize=4096)
def _qualified_name(operation: Any) -> str | None:
    if operation is None:
        return None
    if isinstance(operation, torch._ops.OpOverloadPacket):
        return str(operation._qualified_op_name)
    name = getattr(operation, "__name__", "")  # Dynamo keeps torch._int_mm as that very function
    return f"aten::{name}" if getattr(torch._C._VariableFunctions, name, None) is operation else None


def registered(*qualified_names: str) -> frozenset[Any]:
    """The packets of those custom operators (``"namespace::name"``) that are loaded in this process."""
    found = (_lookup(*name.split("::")) for name in qualified_names)
    return frozenset(form for form in found if form is not None)


def _lookup(namespace: str, name: str) -> Any:
    return getattr(getattr(torch.ops, namespace), name, None)


PERMUTE = targets("permute")
TRANSPOSE = PERMUTE | targets("t", "numpy_T", "mT", "transpose", "swapaxes", "swapdims", "adjoint")
CAST = targets("to", "type", "type_as", "float", "half", "bfloat16", "double", "_to_copy")
COPY = targets("contiguous", "clone", "detach", "alias", "lift_fresh")
LAYOUT = targets(
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "view_as",
    "reshape_as", "expand_as", "movedim", "moveaxis", "repeat", "repeat_interleave", "roll", "pad",
    "constant_pad_nd", "as_strided", "slice_scatter", "select_scatter", "copy",
)  # fmt: skip
BROADCAST = targets("expand", "view", "_unsafe_view", "reshape", "unsqueeze") | COPY | CAST
SELECT = targets(
    "getitem", "select", "slice", "narrow", "split", "split_with_sizes", "chunk", "unbind", "cat", "concat",
    "concatenate", "stack", "index", "index_select",
)  # fmt: skip
POINTWISE = targets(
    "mul", "imul", "div", "truediv", "itruediv", "sigmoid", "silu", "gelu", "relu", "tanh", "softplus", "elu",
    "exp", "log", "neg", "abs", "pow", "square", "sqrt", "rsqrt", "reciprocal", "where", "masked_fill",
    "clamp", "clamp_min", "nan_to_num", "dropout", "native_dropout", "hardtanh", "erf", "sin", "cos",
    "maximum", "minimum", "max", "min", "round", "clip",
)  # fmt: skip
ACTIVATION = targets(
    "sigmoid", "silu", "gelu", "relu", "relu6", "leaky_relu", "tanh", "softplus", "elu", "celu", "selu",
    "mish", "hardswish", "hardsigmoid", "hardtanh", "softsign", "logsigmoid", "square", "pow", "__pow__",
    "exp", "expm1", "log1p", "erf", "clamp", "clamp_min", "clamp_max", "threshold", "abs", "where", "maximum",
    "minimum",
)  # fmt: skip
NORM = targets(
    "rms_norm", "_fused_rms_norm", "layer_norm", "native_layer_norm", "group_norm", "native_group_norm",
    "normalize", "mean", "sum", "var", "var_mean", "norm", "linalg_vector_norm", "amax",
)  # fmt: skip
FACTORY = targets(
    "new_empty", "new_zeros", "new_ones", "new_full", "empty_like", "zeros_like", "ones_like", "full_like",
)  # fmt: skip
_NEW_MEMORY = targets(
    "clone", "_to_copy", "copy", "cat", "concat", "concatenate", "stack", "repeat", "repeat_interleave",
    "roll", "pad", "constant_pad_nd", "slice_scatter", "select_scatter", "index", "index_select",
) - targets("copy_")  # fmt: skip
ALIASING = (LAYOUT | TRANSPOSE | SELECT | CAST | COPY) - _NEW_MEMORY  # of their first input, or new memory

PASS_THROUGH = TRANSPOSE | CAST | COPY | LAYOUT | SELECT | POINTWISE | NORM
COMBINE = targets("add", "iadd", "sub", "isub", "rsub", "addcmul", "lerp")
COMPARE = targets("ge", "gt", "le", "lt", "eq", "ne")
ELEMENTWISE = POINTWISE | ACTIVATION | COMBINE | CAST | COPY | COMPARE
REDUCTION = targets("mean", "sum", "var", "var_mean", "norm", "linalg_vector_norm", "amax", "max", "min")
GLU = targets("glu")
LOOKUP = targets("embedding")
LOOKUP_OF_BAGS = targets("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
INDEX = targets("getitem", "index", "index_select", "gather")
SAMPLING = targets(
    "argmax", "topk", "sort", "log_softmax", "_log_softmax", "multinomial", "gather", "logsumexp",
    "cross_entropy", "nll_loss",
)  # fmt: skip
SOFTMAX = targets("softmax", "_softmax", "_safe_softmax")
EINSUM = targets("einsum")
TENSORDOT = targets("tensordot")
MATMUL = EINSUM | TENSORDOT | targets("linear", "matmul", "imatmul", "mm", "bmm", "baddbmm", "addmm")
INPLACE_OPERATORS = frozenset({
    operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod,
    operator.ipow, operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift,
})  # fmt: skip
TOKEN_MIXER = targets("conv1d", "convolution", "cumsum")

ATTENTION = targets(
    "scaled_dot_product_attention", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_attention_math",
    "_scaled_dot_product_attention_math_for_mps", "_scaled_dot_product_fused_attention_overrideable",
    "_flash_attention_forward", "_efficient_attention_forward",
) | {torch.ops.higher_order.flex_attention}  # fmt: skip

# Attention that projects its own result, with the position of that projection's weight.
FUSED_ATTENTION = {
    **dict.fromkeys(targets("multi_head_attention_forward"), 11),
    **dict.fromkeys(targets("_native_multi_head_attention"), 7),
    **dict.fromkeys(targets("_transformer_encoder_layer_fwd"), 5),
}

# Operators that quantise an activation, where their library is loaded; its scales come out with it.
QUANTISE = ("npu::npu_quantize", "npu::npu_dynamic_quant")

# Operators that gate one half of the last dimension by the other, a fused gate and up, where their library is
# loaded. vLLM's write into their first argument what they make of the second.
GATED_PAIR = (
    "npu::npu_swiglu",
    "_C::silu_and_mul",
    "_C::mul_and_silu",
    "_C::gelu_and_mul",
    "_C::gelu_tanh_and_mul",
    "_C::fatrelu_and_mul",
    "_C::situ_and_mul",
    "_C::silu_and_mul_with_clamp",
    "_C::swiglustep_and_mul",
)

# Linear layers that a serving engine hides from a compiler, called as ``F.linear`` is: vllm-ascend's.
ENGINE_LINEAR = ("vllm::unquantized_gemm",)

# Attention kernels of serving engines and of Ascend, where their library is loaded.
ENGINE_ATTENTION = (
    "vllm::unified_attention",
    "vllm::unified_attention_with_output",
    "vllm::unified_mla_attention",
    "vllm::unified_mla_attention_with_output",
    "vllm::mla_forward",  # its projection hoisted out of it by the plugin for vLLM
    "npu::npu_fusion_attention",
    "npu::npu_fusion_attention_v2",
    "npu::npu_fusion_attention_v3",
    "npu::npu_fused_infer_attention_score",
    "npu::npu_fused_infer_attention_score_v2",
    "npu::npu_incre_flash_attention",
    "npu::npu_prompt_flash_attention",
    "npu::_npu_paged_attention",
    "npu::_npu_flash_attention",
    "npu::npu_ring_mla",
)
