"""What each site that was found is in the report: its shapes and bytes, and how it is shared."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from oproj_pass.backend.strategy import named_strategy
from oproj_pass.config import OProjConfig
from oproj_pass.explanation.row import ProjectionRow
from oproj_pass.passes import STRATEGIES, Axis, Grouped, Mlp, Projection, Site, strategy_names
from oproj_pass.passes.gemm.following_step import CannotFollow
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.strategies.token_sizes import token_sizes
from oproj_pass.tracing.sites import FoundSite


def rows_of(sites: Sequence[FoundSite], config: OProjConfig) -> Iterator[ProjectionRow]:
    """One row a site; a weight counts where it is found first."""
    owners: dict[int, str] = {}
    for found in sites:
        yield replace(
            _row(found.site, config), calls=found.calls, shares_weight_with=owners.get(found.storage)
        )
        owners.setdefault(found.storage, found.site.path)


def _row(site: Site, config: OProjConfig) -> ProjectionRow:
    fields = _product(site, config) if isinstance(site, Projection) else _of_other_kind(site, config)
    return ProjectionRow(
        path=site.path,
        dtype=str(value_of(site.stored[0].node).dtype).removeprefix("torch."),
        scheme=site.scheme,
        nbytes=site.nbytes,
        role=site.role,
        strategy=named_strategy(site, config),
        **_axes(site, config),
        **fields,
    )


def _product(site: Projection, config: OProjConfig) -> dict[str, Any]:
    token = token_sizes(site, config.reduce_dtype)
    return {
        "gemm": site.gemm.form.name,
        "out_features": site.out_features,
        "in_features": site.in_features,
        "input_itemsize": token.input_itemsize,
        "partial_itemsize": token.sum_itemsize,
        "product_itemsize": token.product_itemsize,
        "scale_nbytes": token.scale_nbytes,
        "row_scale_nbytes": token.row_scale_nbytes,
    }


def _axes(site: Site, config: OProjConfig) -> dict[str, Any]:
    if isinstance(site, Projection) and len(strategy_names(site)) > 1:
        return _limits(site, config)
    return _cut(site, config)


def _limits(site: Projection, config: OProjConfig) -> dict[str, Any]:
    """What the strategies that a site can be given by name may cut."""
    return {"unit": site.gemm.k.unit, "grid": config.grid, "out_parts": _parts_of_outputs(site)}


def _of_other_kind(site: Site, config: OProjConfig) -> dict[str, Any]:
    """A site in two steps by its last GEMM and the input of the first; an embedding by a row for a token."""
    if isinstance(site, Grouped):
        return _product(site.last, config) | {
            "input_itemsize": value_of(site.first.input).dtype.itemsize,
            "scale_nbytes": 0,
            "row_scale_nbytes": 0,
            "brought": site.first.input_features,
        }
    if isinstance(site, Mlp):
        up, down = Projection(site.path, site.ups[0], {}), Projection(site.path, site.down, {})
        scales = token_sizes(up, config.reduce_dtype)
        return _product(replace(down, role=site.role), config) | {
            "input_itemsize": scales.input_itemsize,
            "scale_nbytes": scales.scale_nbytes,
            "row_scale_nbytes": scales.row_scale_nbytes,
            "brought": scales.in_features,
        }
    vocabulary, features = value_of(site.stored[0].node).shape
    return {
        "gemm": "embedding",
        "out_features": vocabulary,
        "in_features": features,
        "input_itemsize": value_of(site.input).dtype.itemsize,
        "partial_itemsize": value_of(site.node).dtype.itemsize,
        "brought": 1,
        "made": features,
    }


def _cut(site: Site, config: OProjConfig) -> dict[str, Any]:
    """The axis that the one strategy for a kind of sites cuts."""
    first, *others = STRATEGIES[named_strategy(site, config)].cuts(site)
    unit = math.lcm(first.unit, *(cut.unit for cut in others))
    return {"cut": first.extent // first.segments, "padded": first.is_padded, "unit": unit}


def _parts_of_outputs(site: Projection) -> int:
    try:
        return site.along(Axis.H).parts
    except CannotFollow:
        return 1
