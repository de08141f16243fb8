"""Explains a model: runs a copy of it once, and reports what the search found.

Of equal layers the first and the last are run, and answer for the others (see ``tracing.equal_layers``).
"""

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from oproj_pass.config import OProjConfig
from oproj_pass.errors import ConfigError
from oproj_pass.explanation.equal_layers import for_all_layers, kinds_agree
from oproj_pass.explanation.report import ExplainReport, ProjectionRow
from oproj_pass.explanation.rows import rows_of
from oproj_pass.passes import NearMiss
from oproj_pass.tracing.equal_layers import shorten_stack
from oproj_pass.tracing.graph_break import GraphBreak
from oproj_pass.tracing.graphs import capture_graphs, copy_to_run
from oproj_pass.tracing.sites import SiteSearch

logger = logging.getLogger(__name__)


def explain(model: nn.Module, *args: Any, config: Any = None, **kwargs: Any) -> ExplainReport:
    """What ``backend="oproj_npu"`` would do to ``model``, called with ``args`` and ``kwargs``.

    Needs no process group and no weights (the model and its arguments may be on ``meta``), and changes
    nothing: a copy that shares the parameters is captured, under ``no_grad``, and run once as it is captured,
    with two of each kind of equal layers where these can answer for all.

    config: ``OProjConfig`` or its fields; the report shows every role whose size is not 0, at the sizes above
        1 that are given, else at 2, 4 and 8.

    Raises ``ConfigError`` for wrong options, for an option beside ``config``, or for a model that cannot be
    copied, ``WeightReleasedError`` for one that is already sharded, and whatever the model raises.
    """
    _refuse_options_among(kwargs, model)
    config = OProjConfig.from_options(config)
    found = _from_equal_layers(model, args, kwargs, config)
    return found if isinstance(found, ExplainReport) else _from_all_layers(model, args, kwargs, config, found)


def _from_equal_layers(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], config: OProjConfig
) -> ExplainReport | str:
    """The report from two layers of each kind; where these cannot answer for all, the reason."""
    if config.include or config.exclude:
        return "globs may tell layers apart"
    module, inputs, named = copy_to_run(model, args, kwargs)
    search = SiteSearch(module, config)
    stack = shorten_stack(module)
    if isinstance(stack, str):
        return stack
    try:
        breaks = capture_graphs(module, inputs, named, search)
    except Exception as error:  # a model need not run without some of its layers
        return f"it does not run with fewer of them ({type(error).__name__}: {error})"
    if breaks or search.num_graphs != 1:
        return "it makes several graphs"
    rows, misses = list(rows_of(search.sites, config)), list(search.near_misses)
    if not (kinds_agree(stack, rows) and kinds_agree(stack, misses)):
        return "equal layers were found to be sharded differently"
    rows, misses = [*for_all_layers(stack, rows)], [*for_all_layers(stack, misses)]
    return _report(module, config, rows, misses)


def _from_all_layers(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], config: OProjConfig, why: str
) -> ExplainReport:
    logger.info("every layer of %s is traced: %s", type(model).__name__, why)
    module, inputs, named = copy_to_run(model, args, kwargs)
    search = SiteSearch(module, config)
    breaks = capture_graphs(module, inputs, named, search)
    rows = list(rows_of(search.sites, config))
    return _report(module, config, rows, list(search.near_misses), breaks, search.num_graphs)


def _report(
    model: nn.Module,
    config: OProjConfig,
    rows: Sequence[ProjectionRow],
    misses: Sequence[NearMiss],
    breaks: Sequence[GraphBreak] = (),
    num_graphs: int = 1,
) -> ExplainReport:
    return ExplainReport(
        model=type(model).__name__,
        oproj_tensor_parallel_size=config.oproj_tensor_parallel_size,
        projections=tuple(rows),
        near_misses=tuple(misses),
        graph_breaks=tuple(breaks),
        num_graphs=num_graphs,
        role_sizes={role: config.sizes[role] for role in config.roles},
    )


def _refuse_options_among(kwargs: Mapping[str, Any], model: Any) -> None:
    """The model would get them, and a Hugging Face one ignores what it does not know."""
    own = inspect.signature(model.forward).parameters if isinstance(model, nn.Module) else ()
    for name in (OProjConfig.model_fields.keys() & kwargs.keys()) - set(own):
        raise ConfigError(
            f"explain passes keyword arguments to the model, and its forward has no {name!r}. Options go in "
            f"config: explain(model, ..., config={{{name!r}: {kwargs[name]!r}}})."
        )
