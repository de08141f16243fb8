"""Which stored tensors of a model are cut for this rank, and how: found from its graphs, as ``explain`` does.

The graphs are captured on ``meta``, so neither values nor a device are needed.
"""

import inspect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from oproj_pass.backend.exchanges import groups_of
from oproj_pass.backend.policy import Decision, require_asked_for
from oproj_pass.backend.sizes import may_shard, resolved_sizes
from oproj_pass.backend.strategy import mesh_of
from oproj_pass.config import OProjConfig
from oproj_pass.errors import ConfigError, OProjError
from oproj_pass.groups import ShardGroup
from oproj_pass.passes import Site
from oproj_pass.passes.gemm.split import Split
from oproj_pass.passes.sites.options import of_role
from oproj_pass.tracing.graphs import capture_graphs, copy_on_meta
from oproj_pass.tracing.sites import SiteSearch
from oproj_pass.weights.placement import Placement


@dataclass(frozen=True)
class Held:
    """A rank's part of one tensor, and what the tensor is here for (see ``Shard``)."""

    placement: Placement
    role: str


def find_placements(
    model: nn.Module, config: OProjConfig, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Held]:
    """How this rank holds every tensor of which it holds a slice, by its name in the model.

    ``args`` and ``kwargs``: one call of the model. Raises ``ConfigError`` for a group that does not fit the
    world or an axis that it cannot split, ``SiteMismatchError`` if there is nothing to shard.
    """
    if not may_shard(config):
        return {}
    search = _search(model, config, args, kwargs)
    for role, size in resolved_sizes((), config).items():
        if size > 1 and not any(found.site.role == role for found in search.sites):
            missed = of_role(search.near_misses, role)
            require_asked_for(role, config, f"{type(model).__name__} has", missed)
    graphs = defaultdict[int, list[Site]](list)
    for found in search.sites:
        graphs[found.graph].append(found.site)
    return {name: found for sites in graphs.values() for name, found in _placements(sites, config).items()}


def _placements(sites: Sequence[Site], config: OProjConfig) -> dict[str, Held]:
    """What the backend will ask for when it compiles the graph of these sites."""
    decision = Decision.of(sites, (), config)
    if not decision.sharded:
        return {}
    groups, found = groups_of(decision, config), dict[str, Held]()
    for site in decision.sharded:
        size, mesh = decision.size_of(site), mesh_of(decision.strategy_of(site))
        along = defaultdict[str, list[tuple[Split, ShardGroup]]](list)
        for cut in decision.cuts_of(site):
            for tensor in cut.tensors:
                along[tensor.path].append((tensor.split, groups.along(cut.axis, size, mesh)))
        for path, axes in along.items():
            roles = [found[path].role] if path in found else []
            role = "+".join(dict.fromkeys([*roles, site.role]))
            found[path] = Held(Placement.over(axes), role)
    return found


def _search(
    model: nn.Module, config: OProjConfig, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> SiteSearch:
    args, kwargs = (args, kwargs) if args or kwargs else ((), _decode_step(model))
    copied, args, kwargs = copy_on_meta(model, args, kwargs)
    search = SiteSearch(copied, config)
    try:
        capture_graphs(copied, args, kwargs, search)
    except OProjError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{type(model).__name__} cannot be run on the meta device, which finds its sites. Bring "
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
