"""What a token brings to a product in a graph, for counting the bytes that a strategy sends."""

import torch

from oproj_pass.passes.gemm.gemm import RowScale
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.sites.projection import Projection
from oproj_pass.passes.traffic import TokenSizes


def token_sizes(site: Projection, reduce_dtype: torch.dtype | None = None) -> TokenSizes:
    """Those of a site whose partial sums travel in ``reduce_dtype``, where they are floating numbers."""
    product, scales = value_of(site.gemm.node).dtype, site.gemm.row_scales
    summed_in = reduce_dtype if product.is_floating_point else None
    return TokenSizes(
        site.in_features,
        site.out_features,
        input_itemsize=value_of(site.gemm.input).dtype.itemsize,
        sum_itemsize=(summed_in or product).itemsize,
        product_itemsize=product.itemsize,
        scale_nbytes=sum(_nbytes_a_row(scale) for scale in scales if scale.features),
        row_scale_nbytes=sum(_nbytes_a_row(scale) for scale in scales if not scale.features),
    )


def _nbytes_a_row(scale: RowScale) -> int:
    value = value_of(scale.node)
    return int(value.dtype.itemsize * (value.shape[-1] if scale.features else 1))
