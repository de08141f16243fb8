"""Output projections in every scheme, behind an attention that hands its input on as it is."""

import torch
from torch import nn

from tests.support import npu_kernels  # noqa: F401  (registers Ascend's operators)

npu = torch.ops.npu
ATTENTION = "oproj_quantised::attend"


@torch.library.custom_op(ATTENTION, mutates_args=())
def attend(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


attend.register_fake(torch.empty_like)


class Model(nn.Module):
    """``attend`` and a projection, so that a test decides what the projection's rows are."""

    def __init__(self, o_proj):
        super().__init__()
        self.o_proj = o_proj

    def forward(self, x):
        return self.o_proj(attend(x))


class Projection(nn.Module):
    """``quantise`` gives what travels, features first; ``multiply`` takes it with a weight and a bias."""

    def __init__(self, features=64, hidden=24, bias=True, dtype=torch.bfloat16):
        super().__init__()
        self.dtype = dtype
        self.store(features, hidden)
        self.store_bias(hidden if bias else None)

    def constant(self, name, value):
        self.register_buffer(name, value)

    def store_bias(self, hidden):
        self.constant("bias", None if hidden is None else torch.randn(hidden).to(self.dtype))

    def forward(self, x):
        q, *scales = self.quantise(x)
        return self.multiply(q, *scales, weight=self.weight, bias=self.bias)


class W8A8Dynamic(Projection):
    """vLLM-Ascend's: weight [H, K] stored, used transposed, a float bias, a scale a row."""

    def store(self, features, hidden):
        self.constant("weight", torch.randint(-127, 128, (hidden, features), dtype=torch.int8))
        self.constant("scale", torch.rand(hidden) / 100)

    def quantise(self, x):
        return npu.npu_dynamic_quant(x)

    def multiply(self, q, scales, weight, bias):
        return npu.npu_quant_matmul(
            q, weight.t(), self.scale, pertoken_scale=scales, bias=bias, output_dtype=self.dtype
        )


class W8A8Smooth(W8A8Dynamic):
    """With a factor for each input feature, and an int32 bias in units of both scales."""

    def store(self, features, hidden):
        super().store(features, hidden)
        self.constant("smooth", torch.rand(features) + 0.5)

    def store_bias(self, hidden):
        self.constant("bias", torch.randint(-9999, 9999, (hidden,), dtype=torch.int32))

    def quantise(self, x):
        return npu.npu_dynamic_quant(x, smooth_scales=self.smooth)


class W8A8Tensor(W8A8Dynamic):
    """One scale for all rows of a rank, another one on every rank."""

    def quantise(self, x):
        return npu.npu_dynamic_quant(x, quant_mode="pertensor")


class W8A8Static(Projection):
    """ModelSlim's: weight [K, H] stored, stored input scale and offset, an int32 bias."""

    def store(self, features, hidden):
        self.constant("weight", torch.randint(-127, 128, (features, hidden), dtype=torch.int8))
        self.constant("scale", torch.rand(hidden) / 100)
        self.constant("input_scale", torch.full((1,), 0.03))
        self.constant("input_offset", torch.full((1,), 3.0))

    def store_bias(self, hidden):
        self.constant("bias", torch.randint(-9999, 9999, (hidden,), dtype=torch.int32) if hidden else None)

    def quantise(self, x):
        return (npu.npu_quantize(x, self.input_scale, self.input_offset, torch.qint8, -1, True),)

    def multiply(self, q, weight, bias):
        return npu.npu_quant_matmul(q, weight, self.scale, bias=bias, output_dtype=self.dtype)


class W8A8Packed(W8A8Static):
    """With its scale packed by ``npu_trans_quant_param``, as float16 products need it."""

    def multiply(self, q, weight, bias):
        packed = npu.npu_trans_quant_param(self.scale)
        return npu.npu_quant_matmul(q, weight, packed, bias=bias, output_dtype=torch.float16)


class Parameters:
    """Stores constants as parameters, as most checkpoints' loaders do."""

    def constant(self, name, value):
        self.register_parameter(name, None if value is None else nn.Parameter(value, requires_grad=False))


class W8A8DynamicParameters(Parameters, W8A8Dynamic):
    pass


class IntMM(Projection):
    """SmoothQuant's, in plain torch: int8 rows, an int32 product, dequantised and biased behind it."""

    def store(self, features, hidden):
        self.constant("weight", torch.randint(-127, 128, (features, hidden), dtype=torch.int8))
        self.constant("scale", torch.rand(hidden) / 100)

    def forward(self, x):
        scales = self.scales(x)
        y = self.multiply(*self.quantise(x), weight=self.weight, bias=None).float() * scales * self.scale
        return y.to(self.dtype) if self.bias is None else y.to(self.dtype) + self.bias

    def scales(self, x):
        return x.float().abs().amax(-1, keepdim=True) / 127

    def quantise(self, x):
        return ((x.float() / self.scales(x)).round().clamp(-127, 127).to(torch.int8),)

    def multiply(self, q, weight, bias):
        return torch._int_mm(q, weight)


def model(projection, **options):
    """A model whose weights are the same on every rank."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Model(projection(**options)).eval()
