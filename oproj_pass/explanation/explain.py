"""Explains a model: runs a copy of it once, and reports what the search found."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from oproj_pass.config import OProjConfig
from oproj_pass.errors import ConfigError
from oproj_pass.explanation.report import ExplainReport, ProjectionRow
from oproj_pass.passes.gemm.gemm import RowScale
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.tracing.graphs import capture_graphs, copy_to_run
from oproj_pass.tracing.projections import FoundProjection, ProjectionSearch


def explain(model: nn.Module, *args: Any, config: Any = None, **kwargs: Any) -> ExplainReport:
    """What ``backend="oproj_npu"`` would do to ``model``, called with ``args`` and ``kwargs``.

    Needs no process group and no weights (the model and its arguments may be on ``meta``), and changes
    nothing: a copy that shares the parameters is captured, under ``no_grad``, and run once as it is captured.

    config: ``OProjConfig`` or its fields; the report shows ``oproj_tensor_parallel_size`` if it is above 1,
        else 2, 4 and 8.

    Raises ``ConfigError`` for wrong options, for an option beside ``config``, or for a model that cannot be
    copied, ``WeightReleasedError`` for one that is already sharded, and whatever the model raises.
    """
    _refuse_options_among(kwargs, model)
    config = OProjConfig.from_options(config)
    module, inputs, named = copy_to_run(model, args, kwargs)
    search = ProjectionSearch(module, config)
    breaks = capture_graphs(module, inputs, named, search)
    return ExplainReport(
        model=type(module).__name__,
        oproj_tensor_parallel_size=config.oproj_tensor_parallel_size,
        projections=tuple(_rows(search.projections, config)),
        near_misses=tuple(search.near_misses),
        graph_breaks=tuple(breaks),
        num_graphs=search.num_graphs,
    )


def _refuse_options_among(kwargs: Mapping[str, Any], model: Any) -> None:
    """The model would get them, and a Hugging Face one ignores what it does not know."""
    own = inspect.signature(model.forward).parameters if isinstance(model, nn.Module) else ()
    for name in (OProjConfig.model_fields.keys() & kwargs.keys()) - set(own):
        raise ConfigError(
            f"explain passes keyword arguments to the model, and its forward has no {name!r}. Options go in "
            f"config: explain(model, ..., config={{{name!r}: {kwargs[name]!r}}})."
        )


def _rows(projections: Sequence[FoundProjection], config: OProjConfig) -> Iterator[ProjectionRow]:
    owners: dict[int, str] = {}
    for found in projections:
        yield _row(found, config, owners.get(found.storage))
        owners.setdefault(found.storage, found.site.path)


def _row(found: FoundProjection, config: OProjConfig, owner: str | None) -> ProjectionRow:
    site = found.site
    product, scales = value_of(site.gemm.node).dtype, site.gemm.row_scales
    reduce_dtype = config.reduce_dtype if product.is_floating_point else None
    return ProjectionRow(
        path=site.path,
        gemm=site.gemm.form.name,
        out_features=site.out_features,
        in_features=site.in_features,
        dtype=str(site.dtype).removeprefix("torch."),
        scheme=site.scheme,
        nbytes=site.nbytes,
        input_itemsize=value_of(site.gemm.input).dtype.itemsize,
        partial_itemsize=(reduce_dtype or product).itemsize,
        scale_nbytes=sum(_nbytes_a_row(scale) for scale in scales if scale.features),
        row_scale_nbytes=sum(_nbytes_a_row(scale) for scale in scales if not scale.features),
        unit=site.gemm.k.unit,
        calls=found.calls,
        shares_weight_with=owner,
    )


def _nbytes_a_row(scale: RowScale) -> int:
    value = value_of(scale.node)
    return int(value.dtype.itemsize * (value.shape[-1] if scale.features else 1))
