"""Operators of engines that gate a fused gate and up, where no library brings them."""

import torch
import torch.nn.functional as F


def silu_and_mul(x):
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def _fill(out, x):
    out.copy_(silu_and_mul(x))


def _define(namespace, schema, kernel, fake):
    library = torch.library.Library(namespace, "FRAGMENT")
    name = schema.partition("(")[0]
    if not hasattr(getattr(torch.ops, namespace), name):
        library.define(schema)
        library.impl(name, kernel, "CPU")
        torch.library.register_fake(f"{namespace}::{name}", fake, lib=library)
    return library


LIBRARIES = (
    _define("npu", "npu_swiglu(Tensor self, int dim=-1) -> Tensor", lambda x, dim=-1: silu_and_mul(x),
            lambda x, dim=-1: silu_and_mul(x)),
    _define("_C", "silu_and_mul(Tensor! out, Tensor input) -> ()", _fill, lambda out, x: None),
)  # fmt: skip
