"""Checkpoints whose output projections are quantised, one scheme a layer, and kernels for them on any CPU.

float8 runs on vLLM's own kernels over ``torch._scaled_mm``. Of int8, vLLM's kernel for CPUs packs the weight
into a handle of its own; here a kernel calls Ascend's operators, as vllm-ascend does.
"""

import json

import torch
from safetensors.torch import load_file, save_file

INPUT_SCALE = 0.05  # of layers with a stored one


def scheme(layer, kind, weights, inputs):
    """A layer's output projection in eight bits of a kind, in compressed-tensors' words."""
    common = {"num_bits": 8, "type": kind, "symmetric": True}
    return {
        "targets": [f"re:.*layers\\.{layer}\\.self_attn\\.o_proj"],
        "format": f"{kind}-quantized",
        "weights": {**common, "strategy": weights, "dynamic": False},
        "input_activations": {**common, "strategy": inputs, "dynamic": inputs == "token"},
    }


GROUPS = [  # by layer
    scheme(0, "float", "channel", "token"),
    scheme(1, "float", "tensor", "tensor"),
    scheme(2, "int", "channel", "token"),
    scheme(3, "int", "channel", "tensor"),
]


def quantise_output_projections(folder, groups):
    """Rewrite a checkpoint with the output projection of each layer in its group's scheme."""
    weights = load_file(folder / "model.safetensors")
    for layer, group in enumerate(groups):
        name = f"model.layers.{layer}.self_attn.o_proj"
        weights |= _quantised(name, weights.pop(f"{name}.weight"), group)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": {str(layer): group for layer, group in enumerate(groups)}, "ignore": [],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _quantised(name, weight, group):
    is_float = group["weights"]["type"] == "float"
    largest = (
        weight.abs().amax(1, keepdim=True)
        if group["weights"]["strategy"] == "channel"
        else weight.abs().max()
    )
    scale = largest / (448 if is_float else 127)
    stored = weight / scale
    stored = stored.to(torch.float8_e4m3fn) if is_float else stored.round().to(torch.int8)
    scales = {
        f"{name}.weight": stored,
        f"{name}.weight_scale": scale.reshape(-1, 1) if scale.numel() > 1 else scale.reshape(1),
    }
    if group["input_activations"]["dynamic"]:
        return scales
    return scales | {f"{name}.input_scale": torch.tensor([INPUT_SCALE])}


def use():
    """Choose these kernels in this process, whatever else the CPU could run."""
    from vllm import _custom_ops
    from vllm.model_executor.kernels import linear
    from vllm.platforms import PlatformEnum

    linear._POSSIBLE_FP8_KERNELS[PlatformEnum.CPU] = [
        linear.PerTensorTorchFP8ScaledMMLinearKernel,
        linear.ChannelWiseTorchFP8ScaledMMLinearKernel,
    ]
    linear._POSSIBLE_INT8_KERNELS[PlatformEnum.CPU] = [_ascend_int8()]
    _custom_ops.scaled_fp8_quant = _scaled_fp8_quant  # which vLLM's loader calls, and a CPU lacks


def _scaled_fp8_quant(x, scale):
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def _ascend_int8():
    from vllm.model_executor.kernels.linear.scaled_mm.ScaledMMLinearKernel import Int8ScaledMMLinearKernel

    import tests.support.npu_kernels  # noqa: F401

    npu = torch.ops.npu

    class AscendInt8(Int8ScaledMMLinearKernel):
        @classmethod
        def is_supported(cls, compute_capability=None):
            return True, None

        @classmethod
        def can_implement(cls, config):
            return config.input_symmetric and config.is_channelwise, "symmetric inputs and channels only"

        def process_weights_after_loading(self, layer):
            layer.weight.data = layer.weight.data.transpose(0, 1).contiguous()
            layer.weight_scale.data = layer.weight_scale.data.flatten()
            if self.config.is_static_input_scheme:
                layer.deq_scale = torch.nn.Parameter(
                    layer.weight_scale.data * layer.input_scale.data, requires_grad=False
                )

        def apply_weights(self, layer, x, bias=None):
            if self.config.is_static_input_scheme:
                rows = npu.npu_quantize(x, layer.input_scale, None, torch.qint8, -1, True)
                return npu.npu_quant_matmul(
                    rows, layer.weight, layer.deq_scale, bias=bias, output_dtype=x.dtype
                )
            rows, scales = npu.npu_dynamic_quant(x)
            return npu.npu_quant_matmul(
                rows, layer.weight, layer.weight_scale, pertoken_scale=scales, bias=bias, output_dtype=x.dtype
            )

    return AscendInt8
