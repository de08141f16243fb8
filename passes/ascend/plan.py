"""Which projections of a compiler's graph a custom pass takes, and by which strategy.

Those whose weights the compiler knows as parameters or buffers. All that can be refused is refused here,
before the graph is changed.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from oproj_pass.errors import ConfigError, SiteMismatchError
from oproj_pass.passes.ascend.presharded import Presharded
from oproj_pass.passes.ascend.settings import Settings
from oproj_pass.passes.ascend.weights import stored_weights
from oproj_pass.passes.contract import NearMiss
from oproj_pass.passes.gemm.following_step import CannotFollow
from oproj_pass.passes.graph.ops import registered
from oproj_pass.passes.shard import ShardPlan
from oproj_pass.passes.sites.expected import listed, require_expected
from oproj_pass.passes.sites.globs import Globs, unmatched_globs
from oproj_pass.passes.sites.roles import as_named, find_roles, strategy_names
from oproj_pass.passes.sites.site import Site
from oproj_pass.passes.strategies import STRATEGIES, Strategy
from oproj_pass.passes.strategies.assignment import Assignment

logger = logging.getLogger(__name__)

_STRANGE = "has a weight that is neither a parameter nor a buffer, or that the step writes"


def plan_of(
    gm: GraphModule, settings: Settings, marked: frozenset[Node], presharded: Mapping[Node, Presharded]
) -> ShardPlan:
    """The plan for one graph; raises an ``OProjError`` that names the layer.

    ``marked``: the inputs that are known to hold weights; ``presharded``: weights that are slices already.
    """
    globs = Globs(settings.include, settings.exclude)
    attention_ops = registered(*settings.attention_ops)
    found, misses = find_roles(gm, {"oproj": globs}, attention_ops=attention_ops, marked=marked)
    _report_idle_globs(globs, [*found, *misses])
    sites = [as_named(site, settings.strategy) for site in found]
    strategies = {site.node: _strategy_of(site, settings.strategy) for site in sites}
    stored = stored_weights(gm, marked)
    taken = [site for site in sites if _cut_nodes(site, strategies[site.node]) <= stored]
    misses += [NearMiss(site.path, _STRANGE, site.nbytes) for site in sites if site not in taken]
    require_expected(taken, misses, settings.expected_sites)
    _require_taken(taken, misses, presharded)
    exchange = settings.exchange
    if exchange.size == 1:
        return ShardPlan(taken, misses)
    parts = [Assignment(site, strategies[site.node], exchange) for site in taken]
    return ShardPlan(taken, misses, parts)


def _report_idle_globs(globs: Globs, found: Sequence[Site | NearMiss]) -> None:
    if idle := unmatched_globs(globs.include, globs.exclude, [item.path for item in found]):
        logger.warning("%s", idle)


def _strategy_of(site: Site, name: str | None) -> Strategy[Any]:
    names = strategy_names(site)
    if name is not None and name not in names:
        raise ConfigError(
            f"{site.path}: npu_pass: strategy = {name!r} does not fit this projection. Those that do: "
            f"{', '.join(names)}."
        )
    return STRATEGIES[name or names[0]]


def _cut_nodes(site: Site, strategy: Strategy[Any]) -> set[Node]:
    try:
        return {tensor.node for cut in strategy.cuts(site) for tensor in cut.tensors}
    except CannotFollow:  # which the sharding refuses, with its reason
        return {tensor.node for tensor in site.stored}


def _require_taken(
    sites: Sequence[Site], near_misses: Sequence[NearMiss], presharded: Mapping[Node, Presharded]
) -> None:
    left = set(presharded).difference(on.node for site in sites for on in site.stored)
    if left:
        paths = ", ".join(sorted(presharded[node].path for node in left))
        raise SiteMismatchError(
            f"{paths}: holds only this rank's slice of its weight, but is not sharded here. Keep its full "
            "weight, or let the pass take it (include, exclude, attention_ops). "
            f"{listed('Near misses', near_misses)}"
        )
