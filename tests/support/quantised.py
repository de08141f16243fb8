"""Output projections in every scheme, behind an attention that hands its input on as it is."""

import torch
import torch.nn.functional as F
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
        return self.multiply(q, *scales, **self.whole(), bias=self.bias)

    def whole(self):
        """The stored tensors that are cut along K, by the names that ``multiply`` gives them."""
        return {"weight": self.weight}


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


FLOAT8 = torch.float8_e4m3fn


class ScaledTensor(Projection):
    """float8 with one scale of all rows, another one on every rank, and one of the weight."""

    def store(self, features, hidden):
        self.constant("weight", torch.randn(hidden, features).to(FLOAT8))
        self.constant("scale", torch.tensor(0.02))

    def quantise(self, x):
        return quantised_by(x, x.float().abs().amax() / 448)

    def multiply(self, q, scale, weight, bias):
        """Rows of other ranks have another scale, so here too it is one a row."""
        scales = self.scale.expand(1, weight.shape[0]).contiguous() if scale.dim() else self.scale
        scale = scale.reshape(-1, 1) if scale.dim() else scale
        return torch._scaled_mm(q, weight.t(), scale, scales, bias=bias, out_dtype=self.dtype)


class ScaledStatic(ScaledTensor):
    """float8 with a stored scale of the input."""

    def store(self, features, hidden):
        super().store(features, hidden)
        self.constant("input_scale", torch.tensor(0.01))

    def quantise(self, x):
        return (quantised_by(x, self.input_scale)[0],)

    def multiply(self, q, weight, bias):
        return super().multiply(q, self.input_scale, weight, bias)


class ScaledRow(ScaledTensor):
    """float8 with a scale of every row and every output channel; the weight is stored column by column."""

    def store(self, features, hidden):
        self.constant("weight", torch.randn(hidden, features).to(FLOAT8).t())
        self.constant("scale", torch.rand(1, hidden) / 100)

    def quantise(self, x):
        return quantised_by(x, x.float().abs().amax(-1, keepdim=True) / 448)

    def multiply(self, q, scale, weight, bias):
        return torch._scaled_mm(
            q, columns(weight), scale.reshape(-1, 1), self.scale, bias=bias, out_dtype=self.dtype
        )


class ScaledRowNamed(ScaledRow):
    """The same through ``torch.nn.functional.scaled_mm``."""

    def multiply(self, q, scale, weight, bias):
        kind = F.ScalingType.RowWise
        return F.scaled_mm(
            q, columns(weight), scale.reshape(-1, 1), kind, self.scale, kind,
            bias=bias, output_dtype=self.dtype,
        )  # fmt: skip


class ScaledBlock(Projection):
    """float8 as DeepSeek stores it: a scale of 128 features of a row, and of 128 x 128 weights."""

    blocks = 128

    def store(self, features, hidden):
        self.constant("weight", torch.randn(hidden, features).to(FLOAT8))
        self.constant("scale", torch.rand(-(-hidden // 128), -(-features // 128)) / 50)

    def whole(self):
        return {"weight": self.weight, "scale": self.scale}

    def quantise(self, x):
        groups = x.float().unflatten(-1, (-1, self.blocks))
        q, scales = quantised_by(groups, groups.abs().amax(-1, keepdim=True) / 448)
        return q.flatten(-2), scales.squeeze(-1)

    def multiply(self, q, scales, weight, scale, bias):
        """Through the operator where it is only traced: no CPU of this torch multiplies by blocks."""
        multiply = torch._scaled_mm if torch.compiler.is_compiling() else multiply_by_blocks
        return multiply(q, weight.t(), scales, scale.t(), bias=bias, out_dtype=self.dtype)


def multiply_by_blocks(
    q, weight, scales, scale, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False
):
    """What ``_scaled_mm`` computes for scales [T, K/128] of rows and [K/128, H/128] of the weight."""
    x = q.float() * scales.repeat_interleave(128, -1)
    w = weight.float() * scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[:, : weight.shape[1]]
    y = x @ w
    return (y if bias is None else y + bias.float()).to(out_dtype)


def quantised_by(x, scale):
    return (x.float() / scale).clamp(-448, 448).to(FLOAT8), scale


def columns(weight):
    """A matrix laid out column by column, as ``_scaled_mm`` takes it; as it is if it already is one."""
    return weight if weight.stride(0) == 1 else weight.t().contiguous().t()


def model(projection, **options):
    """A model whose weights are the same on every rank."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Model(projection(**options)).eval()
