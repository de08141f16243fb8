"""Ascend's quantisation operators on any machine: their schemas, shapes, and reference kernels on the CPU.

Where torch_npu is installed it owns schemas and shapes, and only the kernels are added. Formulas are those of
torch_npu's operator documentation.
"""

import torch

SCHEMAS = (
    "npu_quantize(Tensor input, Tensor scales, Tensor? zero_points, int dtype, int axis=1, "
    "bool div_mode=True) -> Tensor",
    "npu_dynamic_quant(Tensor input, *, Tensor? smooth_scales=None, Tensor? group_index=None, "
    'int? dst_type=None, str quant_mode="pertoken", float dst_type_max=0.) -> (Tensor, Tensor)',
    "npu_quant_matmul(Tensor x1, Tensor x2, Tensor scale, *, Tensor? offset=None, "
    "Tensor? pertoken_scale=None, Tensor? bias=None, int? output_dtype=None, int? x1_dtype=None, "
    "int? x2_dtype=None, int? pertoken_scale_dtype=None, int? scale_dtype=None, int[]? group_sizes=None, "
    "Tensor? y_scale=None) -> Tensor",
    "npu_weight_quant_batchmatmul(Tensor x, Tensor weight, Tensor antiquant_scale, "
    "Tensor? antiquant_offset=None, Tensor? quant_scale=None, Tensor? quant_offset=None, "
    "Tensor? bias=None, int antiquant_group_size=0, int inner_precise=0, int? weight_dtype=None) -> Tensor",
    "npu_trans_quant_param(Tensor scale, Tensor? offset=None, int? round_mode=0) -> Tensor",
)
_DTYPES = {dtype: dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int32)} | {
    3: torch.int32, 5: torch.float16, 6: torch.float32, 15: torch.bfloat16,
}  # fmt: skip


def quantize(input, scales, zero_points, dtype, axis=1, div_mode=True):
    x = input.float() / scales.float() if div_mode else input.float() * scales.float()
    x = x if zero_points is None else x + zero_points.float()
    return x.round().clamp(-128, 127).to(torch.int8)


def dynamic_quant(input, *, smooth_scales=None, quant_mode="pertoken", **unused):
    x = input.float() if smooth_scales is None else input.float() * smooth_scales.float()
    largest = x.abs().amax(-1) if quant_mode == "pertoken" else x.abs().amax().reshape(1)
    scale = largest / 127
    q = x / (scale.unsqueeze(-1) if quant_mode == "pertoken" else scale)
    return q.round().clamp(-127, 127).to(torch.int8), scale


def trans_quant_param(scale, offset=None, round_mode=0):
    return scale.float().view(torch.int32).to(torch.int64)


def quant_matmul(x1, x2, scale, *, pertoken_scale=None, bias=None, output_dtype=None, **unused):
    product = x1.to(torch.int32).reshape(-1, x1.shape[-1]) @ x2.to(torch.int32)
    if bias is not None and bias.dtype == torch.int32:
        product = product + bias
    scale = scale.to(torch.int32).view(torch.float32) if scale.dtype == torch.int64 else scale.float()
    y = product.float() * scale
    if pertoken_scale is not None:
        y = y * pertoken_scale.reshape(-1, 1)
    if bias is not None and bias.dtype != torch.int32:
        y = y + bias.float()
    return y.to(_DTYPES.get(output_dtype, torch.int8)).reshape(*x1.shape[:-1], -1)


def weight_quant_batchmatmul(
    x, weight, antiquant_scale, antiquant_offset=None, quant_scale=None, quant_offset=None, bias=None,
    antiquant_group_size=0, inner_precise=0, weight_dtype=None,
):  # fmt: skip
    group = antiquant_group_size or weight.shape[0]
    scale, offset = (
        None if t is None else t.reshape(-1, weight.shape[1]).float().repeat_interleave(group, 0)
        for t in (antiquant_scale, antiquant_offset)
    )
    y = x.float() @ ((weight.float() if offset is None else weight.float() + offset) * scale)
    return (y if bias is None else y + bias.float()).to(x.dtype)


def _fake_dynamic_quant(input, *, quant_mode="pertoken", **unused):
    scales = input.shape[:-1] if quant_mode == "pertoken" else (1,)
    return input.new_empty(input.shape, dtype=torch.int8), input.new_empty(scales, dtype=torch.float32)


def _fake_quant_matmul(x1, x2, scale, *, output_dtype=None, **unused):
    return x1.new_empty((*x1.shape[:-1], x2.shape[-1]), dtype=_DTYPES.get(output_dtype, torch.int8))


KERNELS = {
    "npu_quantize": (quantize, lambda input, *unused, **also: input.new_empty(input.shape, dtype=torch.int8)),
    "npu_dynamic_quant": (dynamic_quant, _fake_dynamic_quant),
    "npu_quant_matmul": (quant_matmul, _fake_quant_matmul),
    "npu_weight_quant_batchmatmul": (
        weight_quant_batchmatmul,
        lambda x, weight, *unused, **also: x.new_empty((x.shape[0], weight.shape[1])),
    ),
    "npu_trans_quant_param": (
        trans_quant_param,
        lambda scale, *unused: scale.new_empty(scale.shape, dtype=torch.int64),
    ),
}


def _register():
    library = torch.library.Library("npu", "FRAGMENT")
    for schema in SCHEMAS:
        name = schema.partition("(")[0]
        kernel, fake = KERNELS[name]
        if not hasattr(torch.ops.npu, name):
            library.define(schema)
            torch.library.register_fake(f"npu::{name}", fake, lib=library)
        library.impl(name, kernel, "CPU")
    return library


LIBRARY = _register()
