"""Weight-only projections: how quantised weights are stored, and how a model's code dequantises them."""

import torch
import torch.nn.functional as F
from torch import nn

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # the nibble of a word that holds each of eight output channels


class Layout(nn.Module):
    """``dequantise`` gives the weight as a GEMM's operand; ``kept`` names what no rank needs in full."""

    group = 16
    kept: tuple[str, ...] = ()
    unit = 16

    def __init__(self, features=64, hidden=24):
        super().__init__()
        self.features, self.hidden = features, hidden
        self.store(features, hidden)
        self.bias = nn.Parameter(torch.randn(hidden), requires_grad=False)

    def constant(self, name, value):
        self.register_buffer(name, value)

    def forward(self, x):
        return F.linear(x, self.dequantise(), self.bias)


class Channels(Layout):
    """int8 with a scale of every output channel."""

    kept, unit = ("q",), 1

    def store(self, features, hidden):
        self.constant("q", torch.randint(-127, 128, (hidden, features), dtype=torch.int8))
        self.constant("scale", torch.rand(hidden, 1) / 50)

    def dequantise(self):
        return self.q.float() * self.scale


class Smoothed(Channels):
    """With a factor of every input feature folded into the weight."""

    kept = ("q", "smooth")

    def store(self, features, hidden):
        super().store(features, hidden)
        self.constant("smooth", torch.rand(features) + 0.5)

    def dequantise(self):
        return super().dequantise() * self.smooth


class Groups(Layout):
    """int8 with a scale and a (negative) zero point of every 16 features, through a view."""

    kept = ("q", "scale", "zero")

    def store(self, features, hidden):
        self.constant("q", torch.randint(-127, 128, (hidden, features), dtype=torch.int8))
        self.constant("scale", torch.rand(hidden, features // self.group) / 50)
        self.constant("zero", torch.randint(-60, 9, (hidden, features // self.group), dtype=torch.int8))

    def dequantise(self):
        q = self.q.view(self.hidden, -1, self.group).float() - self.zero.unsqueeze(-1)
        return (q * self.scale[..., None]).view(self.hidden, self.features)


class RepeatedGroups(Groups):
    """The same, with every scale repeated for its features."""

    def dequantise(self):
        zero, scale = (t.repeat_interleave(self.group, dim=1) for t in (self.zero, self.scale))
        return (self.q.float() - zero) * scale


class OneGroup(Channels):
    """A scale of every output channel, repeated for all features: a group as long as K is no group."""

    def dequantise(self):
        return self.q.float() * self.scale.repeat_interleave(self.features, dim=1)


class OneGroupViewed(Groups):
    """The same, through a view in groups of which there is one."""

    group, unit, kept = 64, 1, ("q",)


class PairsInBytes(Layout):
    """int4 pairs along the features of a row."""

    kept = ("packed", "scale")

    def store(self, features, hidden):
        self.constant("packed", torch.randint(0, 256, (hidden, features // 2), dtype=torch.uint8))
        self.constant("scale", torch.rand(hidden, features // self.group) / 5)

    def dequantise(self):
        q = torch.stack([self.packed & 15, self.packed >> 4], dim=-1).reshape(self.hidden, self.features)
        return (q.float() - 8) * self.scale.repeat_interleave(self.group, dim=-1)


class CompressedTensors(Layout):
    """``pack-quantized``: eight int4 of a row in an int32, [H, K/8]."""

    kept = ("weight_packed", "weight_scale")

    def store(self, features, hidden):
        self.constant("weight_packed", words(hidden, features // 8))
        self.constant("weight_scale", torch.rand(hidden, features // self.group) / 5)

    def dequantise(self):
        shifts = torch.arange(0, 32, 4, dtype=torch.int32)
        q = (self.weight_packed.unsqueeze(-1) >> shifts) & 15
        q = q.reshape(self.hidden, self.features).float() - 8
        return q * self.weight_scale.repeat_interleave(self.group, dim=1)


class GPTQ(Layout):
    """Words along the features, [K/8, H], zero points packed along the output, groups by index."""

    kept, unit = ("qweight", "g_idx"), 8

    def store(self, features, hidden):
        groups = features // self.group
        self.constant("qweight", words(features // 8, hidden))
        self.constant("qzeros", words(groups, hidden // 8))
        self.constant("scales", torch.rand(groups, hidden) / 5)
        self.constant("g_idx", (torch.arange(features) // self.group)[torch.randperm(features)])

    def dequantise(self):
        shifts = torch.arange(0, 32, 4, dtype=torch.int32)
        q = (self.qweight.unsqueeze(1) >> shifts.view(1, -1, 1)) & 15
        q = q.reshape(self.features, self.hidden)
        zeros = ((self.qzeros.unsqueeze(2) >> shifts.view(1, 1, -1)) & 15).reshape(-1, self.hidden) + 1
        return (self.scales[self.g_idx] * (q - zeros[self.g_idx])).t()


class AWQ(Layout):
    """Words along the output, [K, H/8], their nibbles interleaved; groups of consecutive features."""

    kept = ("qweight", "qzeros", "scales")

    def store(self, features, hidden):
        groups = features // self.group
        self.constant("qweight", words(features, hidden // 8))
        self.constant("qzeros", words(groups, hidden // 8))
        self.constant("scales", torch.rand(groups, hidden) / 5)
        self.constant("order", torch.arange(hidden).view(-1, 8)[:, AWQ_ORDER].flatten())

    def unpack(self, packed):
        shifts = torch.arange(0, 32, 4, dtype=torch.int32)
        return ((packed[:, :, None] >> shifts[None, None, :]) & 15).view(packed.shape[0], -1)[:, self.order]

    def dequantise(self):
        q, zeros = self.unpack(self.qweight), self.unpack(self.qzeros)
        zeros, scales = (t.repeat_interleave(self.group, dim=0) for t in (zeros, self.scales))
        return ((q - zeros) * scales).T


class OneGroupOfWords(AWQ):
    """AWQ with one row of scales and zero points."""

    group, unit, kept = 64, 1, ("qweight",)


class SquareBlocks(Layout):
    """float8 with a scale of every 8 x 8 weights, as DeepSeek's checkpoints with 128 x 128."""

    group, unit, kept = 8, 8, ("q", "scale")

    def store(self, features, hidden):
        self.constant("q", torch.randn(hidden, features).to(torch.float8_e4m3fn))
        self.constant("scale", torch.rand(hidden // 8, features // 8))

    def dequantise(self):
        q = self.q.float().view(self.hidden // 8, 8, self.features // 8, 8)
        return (q * self.scale[:, None, :, None]).view(self.hidden, self.features)


class Cast(Layout):
    """float8 that is cast, and nothing else."""

    unit, kept = 1, ("q",)

    def store(self, features, hidden):
        self.constant("q", torch.randn(hidden, features).to(torch.float8_e4m3fn))

    def dequantise(self):
        return self.q.float()


class LastBlockShorter(Layout):
    """Blocks of 128 over 576 features: five scales, the last of 64 features."""

    group, unit, kept = 128, 128, ("q", "scale")

    def store(self, features, hidden):
        self.constant("q", torch.randint(-127, 128, (hidden, features), dtype=torch.int8))
        self.constant("scale", torch.rand(hidden, -(-features // self.group)) / 50)

    def dequantise(self):
        return self.q.float() * self.scale.repeat_interleave(self.group, dim=1)[:, : self.features]


LAYOUTS = [
    Channels, Smoothed, Groups, RepeatedGroups, OneGroup, OneGroupViewed, PairsInBytes, CompressedTensors,
    GPTQ, AWQ, OneGroupOfWords, SquareBlocks, Cast,
]  # fmt: skip


def words(*shape):
    """int32 of random bits."""
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int64).to(torch.int32)


def layout(kind, **sizes):
    """The module, alike in every process."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(**sizes).eval()
