"""Which stored tensors of a model are cut for this rank, and how: found from its graphs, as ``explain`` does.

The graphs are captured on ``meta``, so neither values nor a device are needed.
"""

import inspect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from oproj_pass.backend.policy import shard_size
from oproj_pass.config import OProjConfig
from oproj_pass.errors import ConfigError, OProjError, SiteMismatchError
from oproj_pass.groups import require_fitting_size, shard_group, world_size
from oproj_pass.passes import Projection
from oproj_pass.passes.gemm.axes import Axis
from oproj_pass.passes.shard import require_divisible
from oproj_pass.passes.sites.expected import listed
from oproj_pass.tracing.graphs import capture_graphs, copy_on_meta
from oproj_pass.tracing.projections import ProjectionSearch
from oproj_pass.weights.placement import Placement


def find_placements(
    model: nn.Module, config: OProjConfig, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Placement]:
    """The placement of every tensor that this rank holds a slice of, by its name in the model.

    ``args`` and ``kwargs``: one call of the model. Raises ``ConfigError`` for a group that does not fit the
    world or a K that it cannot split, ``SiteMismatchError`` if there is nothing to shard.
    """
    if config.oproj_tensor_parallel_size in (0, 1) or _is_alone(config):
        return {}
    search = _search(model, config, args, kwargs)
    if not search.projections and config.oproj_tensor_parallel_size != "auto":
        raise SiteMismatchError(
            f"oproj_tensor_parallel_size = {config.oproj_tensor_parallel_size}, but {type(model).__name__} "
            f"has no attention output projection to load. {listed('Near misses', [*search.near_misses])} Set "
            "it to 0, or register the model's attention operator in `attention_ops`."
        )
    graphs = defaultdict[int, list[Projection]](list)
    for found in search.projections:
        graphs[found.graph].append(found.site)
    return {name: found for sites in graphs.values() for name, found in _placements(sites, config).items()}


def _is_alone(config: OProjConfig) -> bool:
    """Whether there is nobody to share with, and none asked for; then nothing has to be captured."""
    return config.oproj_tensor_parallel_size == "auto" and world_size(config.group) == 1


def _placements(sites: Sequence[Projection], config: OProjConfig) -> dict[str, Placement]:
    """What the backend will ask for when it compiles the graph of these sites."""
    size = shard_size(sites, config)
    if size <= 1:
        return {}
    require_fitting_size(size, config.group)
    group = shard_group(size, config.group, config.timeout)
    cuts = [(site, site.along(Axis.K)) for site in sites]
    for site, cut in cuts:
        require_divisible(site.path, cut, size)
    return {tensor.path: Placement.split(tensor.dim, group) for _, cut in cuts for tensor in cut.tensors}


def _search(
    model: nn.Module, config: OProjConfig, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> ProjectionSearch:
    args, kwargs = (args, kwargs) if args or kwargs else ((), _decode_step(model))
    copied, args, kwargs = copy_on_meta(model, args, kwargs)
    search = ProjectionSearch(copied, config)
    try:
        capture_graphs(copied, args, kwargs, search)
    except OProjError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{type(model).__name__} cannot be run on the meta device, which finds its projections. Bring "
            "inputs of a decode step that it takes, in `example_args` and `example_kwargs` (by default it "
            f"gets one token in `input_ids`). {type(error).__name__}: {str(error).splitlines()[0]}"
        ) from error
    return search


def _decode_step(model: nn.Module) -> dict[str, Any]:
    """The arguments of a causal language model of transformers: one token of one request."""
    parameters = inspect.signature(model.forward).parameters
    if "input_ids" not in parameters:
        raise ConfigError(
            f"{type(model).__name__}.forward takes {', '.join(parameters) or 'nothing'}, and no `input_ids`: "
            "the inputs of one decode step are required, to find the projections in its graph. Bring them in "
            "`example_args` and `example_kwargs`; their values do not matter."
        )
    step: dict[str, Any] = {"input_ids": torch.zeros(1, 1, dtype=torch.int64, device="meta")}
    return step | ({"use_cache": False} if "use_cache" in parameters else {})
