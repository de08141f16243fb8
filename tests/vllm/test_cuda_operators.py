"""vLLM's quantised operators for CUDA, which write into an argument: no scheme knows them yet."""

import torch

from tests.support.traced import attend, search

SCHEMAS = (
    "dynamic_scaled_int8_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale, Tensor(c!)? azp) -> ()",
    "cutlass_scaled_mm(Tensor(a!) out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, "
    "Tensor? bias) -> ()",
)


def _declared():
    library = torch.library.Library("_C", "FRAGMENT")  # vLLM's, which this process never imports
    for schema in SCHEMAS:
        library.define(schema)
        torch.library.register_fake(f"_C::{schema.partition('(')[0]}", lambda *_: None, lib=library)
    return library


LIBRARY = _declared()


def project(x, weight, weight_scale):
    """x [T, K], int8 weight [H, K]: as vLLM's layer calls them."""
    attended = attend(x)
    rows, scales = torch.empty_like(attended, dtype=torch.int8), torch.empty_like(attended[:, :1])
    torch.ops._C.dynamic_scaled_int8_quant(rows, attended, scales, None)
    out = attended.new_empty((attended.size(0), weight.size(0)))
    torch.ops._C.cutlass_scaled_mm(out, rows, weight.t(), scales, weight_scale, None)
    return out + 1


def test_a_projection_by_cutlass_is_a_near_miss():
    weight, scale = torch.zeros(32, 64, dtype=torch.int8), torch.ones(32, 1)
    sites, (near_miss,) = search(project, (torch.randn(4, 64),), weight, scale)
    assert not sites
    assert near_miss.role == "oproj"
    assert "leaves the graph" in near_miss.reason
