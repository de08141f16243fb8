"""Decides, for one captured graph, which of the sites that were found are sharded, and over how many ranks.

Everything that can be refused is refused here, before any group, weight or compiler is touched: no side
effects but log lines.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule

from oproj_pass.config import OProjConfig
from oproj_pass.eager import user_frames_in_compiled_call
from oproj_pass.errors import EagerStepError, SiteMismatchError
from oproj_pass.groups import automatic_size, require_fitting_size, world_size
from oproj_pass.passes import STRATEGIES, NearMiss, Projection
from oproj_pass.passes.shard import require_divisible
from oproj_pass.passes.sites.expected import listed, require_expected
from oproj_pass.passes.sites.globs import unmatched_globs

logger = logging.getLogger(__name__)

STRATEGY = "row"


@dataclass(frozen=True)
class GraphPlace:
    """Where a graph stands in its model: ``graph_break`` is what ended it, None if nothing did.

    ``is_part``: whether the model makes other graphs as well.
    """

    graph_break: str | None = None
    is_part: bool = False

    @classmethod
    def of(cls, gm: GraphModule) -> "GraphPlace":
        """The place of a graph that Dynamo is just handing over."""
        reason: Any = getattr(gm, "compile_subgraph_reason", None)
        broken = reason is not None and reason.graph_break
        is_part = broken or any(user_frames_in_compiled_call())
        return cls(reason.reason.splitlines()[0] if broken else None, is_part)


@dataclass(frozen=True)
class Decision:
    """What becomes of one graph: its sites, each shared by ``size`` ranks; 0 and 1 rewrite nothing."""

    size: int
    sites: Sequence[Projection]
    near_misses: Sequence[NearMiss]

    @property
    def is_sharded(self) -> bool:
        """Whether the graph is rewritten; one without sites is not, and no peer need have it."""
        return self.size > 1 and bool(self.sites)


def decide(
    sites: Sequence[Projection], near_misses: Sequence[NearMiss], config: OProjConfig, place: GraphPlace
) -> Decision:
    """Judge what was found; raises an ``OProjError`` that names the layer and the remedy."""
    _report_idle_globs([*sites, *near_misses], config, place)
    size = shard_size(sites, config)
    require_expected(sites, near_misses, config.expected_sites)
    if size > 1:
        require_fitting_size(size, config.group)
        for site in sites:
            for cut in STRATEGIES[STRATEGY].cuts(site):
                require_divisible(site.path, cut, size)
        _require_sites(sites, near_misses, config, place)
    return Decision(size, sites, near_misses)


def may_shard(config: OProjConfig) -> bool:
    """Whether any graph can be sharded under these options, whatever is in it."""
    if config.plan is not None and not config.plan.covers:
        return False
    size = config.oproj_tensor_parallel_size
    return size > 1 if isinstance(size, int) else world_size(config.group) > 1


def shard_size(sites: Sequence[Projection], config: OProjConfig) -> int:
    """The ranks that share each projection of one graph, N; 0 and 1 rewrite nothing."""
    if config.plan is not None and not config.plan.covers:
        logger.warning("o_proj sharding is off: %s", config.plan.warning)
        return 0
    if isinstance(config.oproj_tensor_parallel_size, int):
        return config.oproj_tensor_parallel_size
    world, features = world_size(config.group), {site.in_features for site in sites}
    size = automatic_size(world, [site.gemm.k.parts for site in sites])
    if config.group is not None and sites:
        size = world
    logger.info(
        "oproj_tensor_parallel_size = auto: %d (world of %d ranks, K of %s)", size, world, sorted(features)
    )
    return size


def _report_idle_globs(
    found: Sequence[Projection | NearMiss], config: OProjConfig, place: GraphPlace
) -> None:
    """A glob that matches nothing in a part of a model may match in the next one."""
    if idle := unmatched_globs(config.include, config.exclude, [item.path for item in found]):
        logger.log(logging.INFO if place.is_part else logging.WARNING, "%s", idle)


def _require_sites(
    sites: Sequence[Projection], near_misses: Sequence[NearMiss], config: OProjConfig, place: GraphPlace
) -> None:
    lost = next((miss for miss in near_misses if miss.left_by_graph_break), None)
    if place.graph_break is not None and lost is not None:
        raise EagerStepError(
            f"{lost.path}: a graph break separates this attention from its projection, which would then "
            f"run unsharded. The break: {place.graph_break}. Remove it, or compile with "
            "fullgraph=True to see it as an error."
        )
    if sites or place.is_part:
        return
    message = f"no attention output projection to shard. {listed('Near misses', near_misses)}"
    if config.oproj_tensor_parallel_size != "auto":
        raise SiteMismatchError(
            f"oproj_tensor_parallel_size = {config.oproj_tensor_parallel_size}, but the graph holds "
            f"{message} Set it to 0, or register the model's attention operator in `attention_ops`."
        )
    logger.warning("the graph holds %s", message)
