"""How many ranks share the weights of each role in one graph: what was asked for, with "auto" resolved."""

import logging
from collections.abc import Sequence
from typing import Any

from oproj_pass.advisor.automatic import advised_size, profile_of, shape_of
from oproj_pass.automatic_sizes import AUTO, AUTO_SIZES
from oproj_pass.backend.strategy import named_strategy
from oproj_pass.config import OProjConfig
from oproj_pass.groups import automatic_size, world_size
from oproj_pass.passes import STRATEGIES, Projection, Site, Strategy, strategy_names
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.shard import required_cuts
from oproj_pass.passes.sites.options import ROLE_TITLES, of_role, size_option

logger = logging.getLogger(__name__)

_TOKENS = 24
"""Of the step that "auto" is judged by where there is no plan: the batch of the published measurements."""


def may_shard(config: OProjConfig) -> bool:
    """Whether any graph can be sharded under these options, whatever is in it."""
    if config.plan is not None and not config.plan.covers:
        return False
    world = world_size(config.group)
    return any(world > 1 if size == "auto" else size > 1 for size in config.sizes.values())


def largest_sizes(config: OProjConfig) -> list[int]:
    """The size of each role in a graph that sets no limit to it."""
    most = automatic_size(world_size(config.group), ())
    return [most if size == "auto" else size for size in config.sizes.values() if size != 0]


def resolved_sizes(sites: Sequence[Site], config: OProjConfig) -> dict[str, int]:
    """The ranks that share each weight of a role in a graph with these sites; 0 and 1 rewrite nothing."""
    if config.plan is not None and not config.plan.covers:
        logger.warning("o_proj sharding is off: %s", config.plan.warning)
        return dict.fromkeys(ROLE_TITLES, 0)
    return {
        role: size if size != "auto" else _automatic(role, of_role(sites, role), config)
        for role, size in config.sizes.items()
    }


def _automatic(role: str, sites: Sequence[Site], config: OProjConfig) -> int:
    world = world_size(config.group)
    cuts = [cut for site in sites for cut in required_cuts(site, _any_strategy(site, config), 1)]
    size = automatic_size(world, [cut.parts for cut in cuts if not cut.is_padded])
    extents = ", ".join(sorted({f"{cut.axis.name} = {cut.extent}" for cut in cuts}))
    if config.group is None and sites and size == 1 < world:
        _warn_that_none_fits(role, world, extents)
    if config.group is not None and sites:
        size = world
    elif role == "oproj" and size > 1 and sites:
        size = _advised(sites, size, config)
    logger.info("%s = auto: %d (world of %d ranks, %s)", size_option(role), size, world, extents or "no site")
    return size


def _warn_that_none_fits(role: str, world: int, extents: str) -> None:
    sizes = ", ".join(map(str, AUTO_SIZES))
    what = f"the world of {world} ranks"
    if automatic_size(world, ()) > 1:
        what += f" and {extents}"
    logger.warning(
        "%s = auto fits none of %s: none divides %s. This graph is not sharded: name a size or a `group` "
        "that fits, or set 0 if that is meant",
        size_option(role), sizes, what,
    )  # fmt: skip


def _advised(sites: Sequence[Site], largest: int, config: OProjConfig) -> int:
    """The size that is worth it on a machine whose profile is known, up to the ``largest`` that fits.

    The same on every rank: it follows from the weights, the plan and the kind of device, not from a step.
    """
    projections = [site for site in sites if isinstance(site, Projection)]
    profile = profile_of(value_of(projections[0].weight).device) if projections else None
    if profile is None:
        return largest
    shapes = [shape_of(site, config.reduce_dtype) for site in projections]
    tokens = _TOKENS if config.plan is None else config.plan.max_size
    return advised_size(shapes, [size for size in AUTO_SIZES if size <= largest], profile, tokens)


def _any_strategy(site: Site, config: OProjConfig) -> Strategy[Any]:
    """The strategy whose axes limit the size; which one is the cheapest is told once there is a size."""
    name = named_strategy(site, config)
    return STRATEGIES[strategy_names(site)[0] if name == AUTO else name]
