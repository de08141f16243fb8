"""Quantised projections in the names and the packing of published checkpoints, made from a float weight.

A format quantises and packs a weight [H, K]; its ``forward`` unpacks as the format defines it. ``cut`` names
the tensors of which a rank needs its part of K alone, with the dimension that K lies on.
"""

import torch
import torch.nn.functional as F
from torch import nn

FLOAT8 = torch.float8_e4m3fn


class Format(nn.Module):
    """Stored tensors are parameters without gradients."""

    group = 16
    cut: tuple[tuple[str, int], ...] = ()

    def __init__(self, weight):
        super().__init__()
        self.hidden, self.features = weight.shape
        for name, value in self.pack(weight.detach()).items():
            setattr(self, name, nn.Parameter(value, requires_grad=False))

    def forward(self, x):
        return F.linear(x, self.dequantise())


class ChannelInt8(Format):
    """compressed-tensors' W8A8: int8 and a scale [H, 1]; a token is quantised over its whole row."""

    cut = (("weight", 1),)

    def pack(self, weight):
        scale = channel_scales(weight)
        return {"weight": to_int8(weight, scale), "weight_scale": scale}

    def forward(self, x):
        rows = x.flatten(0, -2)
        scale = channel_scales(rows)
        y = torch._int_mm(to_int8(rows, scale), self.weight.t()) * scale * self.weight_scale.t()
        return y.unflatten(0, x.shape[:-1])


class PackQuantized(Format):
    """compressed-tensors' ``pack-quantized``: eight int4 of a row in a word, zero points of eight rows."""

    cut = (
        ("weight_packed", 1),
        ("weight_scale", 1),
        ("weight_zero_point", 1),
    )

    def pack(self, weight):
        q, scale, zero = quantise_groups(weight, self.group)
        return {
            "weight_packed": pack_int4(q, 1), "weight_scale": scale, "weight_zero_point": pack_int4(zero, 0),
            "weight_shape": torch.tensor(weight.shape, device=weight.device),
        }  # fmt: skip

    def dequantise(self):
        q = unpack_int4(self.weight_packed, 1) - 8
        zero = unpack_int4(self.weight_zero_point, 0) - 8
        spread = (t.repeat_interleave(self.group, dim=1) for t in (zero, self.weight_scale))
        zero, scale = spread
        return (q - zero) * scale


class PackQuantizedOrdered(PackQuantized):
    """The same with groups of features that lie apart, told by ``weight_g_idx``."""

    cut = (
        ("weight_packed", 1),
        ("weight_g_idx", 0),
    )

    def pack(self, weight):
        order, g_idx = activation_order(weight, self.group)
        packed = super().pack(weight[:, order])
        q = unpack_int4(packed["weight_packed"], 1)[:, order.argsort()]
        return {**packed, "weight_packed": pack_int4(q, 1), "weight_g_idx": g_idx}

    def dequantise(self):
        q = unpack_int4(self.weight_packed, 1) - 8
        zero = unpack_int4(self.weight_zero_point, 0) - 8
        return (q - zero[:, self.weight_g_idx]) * self.weight_scale[:, self.weight_g_idx]


class GPTQ(Format):
    """Words along the features, [K/8, H], zero points less one along the outputs, groups by ``g_idx``."""

    cut = (
        ("qweight", 0),
        ("g_idx", 0),
    )

    def pack(self, weight):
        order, g_idx = activation_order(weight, self.group)
        q, scale, zero = quantise_groups(weight[:, order], self.group)
        return {
            "qweight": pack_int4(q[:, order.argsort()].t(), 0), "qzeros": pack_int4(zero.t() - 1, 1),
            "scales": scale.t().contiguous(), "g_idx": g_idx,
        }  # fmt: skip

    def dequantise(self):
        q, zeros = unpack_int4(self.qweight, 0), unpack_int4(self.qzeros, 1) + 1
        return (self.scales[self.g_idx] * (q - zeros[self.g_idx])).t()


class AWQ(Format):
    """Words along the outputs, [K, H/8], their channels interleaved; groups of consecutive features."""

    cut = (
        ("qweight", 0),
        ("qzeros", 0),
        ("scales", 0),
    )

    def pack(self, weight):
        q, scale, zero = quantise_groups(weight, self.group)
        return {
            "qweight": pack_int4(q.t(), 1, interleaved=True),
            "qzeros": pack_int4(zero.t(), 1, interleaved=True),
            "scales": scale.t().contiguous(),
        }  # fmt: skip

    def dequantise(self):
        q, zeros = (
            unpack_int4(self.qweight, 1, interleaved=True),
            unpack_int4(self.qzeros, 1, interleaved=True),
        )
        zeros, scales = (t.repeat_interleave(self.group, dim=0) for t in (zeros, self.scales))
        return ((q - zeros) * scales).t()


class BlockFloat8(Format):
    """DeepSeek's: float8 with a scale of every block, 16 x 16 here and 128 x 128 there."""

    cut = (
        ("weight", 1),
        ("weight_scale_inv", 1),
    )

    def pack(self, weight):
        blocks = self.blocks(weight)
        scale = blocks.abs().amax((1, 3), keepdim=True) / 448
        q = (blocks / scale).to(FLOAT8).view(weight.shape)
        return {"weight": q, "weight_scale_inv": scale[:, 0, :, 0].contiguous()}

    def blocks(self, weight):
        return weight.view(
            weight.shape[0] // self.group, self.group, weight.shape[1] // self.group, self.group
        )

    def dequantise(self):
        scaled = self.blocks(self.weight.float()) * self.weight_scale_inv[:, None, :, None]
        return scaled.view(self.hidden, self.features)


FORMATS = [ChannelInt8, PackQuantized, PackQuantizedOrdered, GPTQ, AWQ, BlockFloat8]
GROUPED = [PackQuantized, AWQ, BlockFloat8]
"""Formats in which no scale is made of features of two ranks."""


def channel_scales(x):
    return x.abs().amax(-1, keepdim=True) / 127


def to_int8(x, scale):
    return (x / scale).round().clamp(-128, 127).to(torch.int8)


def quantise_groups(weight, group):
    """Unsigned int4 [H, K], float scales and unsigned zero points [H, K/group], the latter from 1 on."""
    groups = weight.unflatten(-1, (-1, group))
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scale = ((high - low) / 15).clamp(min=1e-6)
    zero = (-low / scale).round().clamp(1, 15)
    q = (groups / scale[..., None] + zero[..., None]).round().clamp(0, 15).flatten(-2)
    return q.to(torch.int32), scale, zero.to(torch.int32)


def activation_order(weight, group):
    """Features by their weights' size, as act-order takes them, and the group of each feature."""
    order = weight.abs().sum(0).argsort(descending=True)
    return order, order.argsort().div(group, rounding_mode="floor").to(torch.int32)


def pack_int4(q, dim, interleaved=False):
    """Eight unsigned int4 along ``dim`` to a word; AWQ's interleave even and odd ones."""
    eights = q.unflatten(dim, (-1, 8)).movedim(dim + 1, -1)
    nibbles = (0, 4, 1, 5, 2, 6, 3, 7) if interleaved else range(8)
    return sum(eights[..., i] << 4 * nibble for i, nibble in enumerate(nibbles)).to(torch.int32).contiguous()


def unpack_int4(words, dim, interleaved=False):
    """The reverse of ``pack_int4``, as a model's code writes it."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    if interleaved:
        shifts = shifts.view(2, 4).t().reshape(8)
    if dim == 0:
        return ((words.unsqueeze(1) >> shifts.view(1, 8, 1)) & 15).reshape(-1, words.shape[1])
    return ((words.unsqueeze(2) >> shifts.view(1, 1, 8)) & 15).reshape(words.shape[0], -1)
