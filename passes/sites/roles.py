"""The table of roles: what stored weights are here for, how each is found, and which strategies fit it.

A weight has one role at a place, and may have two places: a tied embedding and head.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule, Node

from oproj_pass.passes.contract import NearMiss
from oproj_pass.passes.sites.embedding_search import find_lookups
from oproj_pass.passes.sites.globs import Globs
from oproj_pass.passes.sites.grouped import Grouped
from oproj_pass.passes.sites.grouped_search import find_output_projections
from oproj_pass.passes.sites.lm_head import find_heads
from oproj_pass.passes.sites.mlp_search import find_mlps
from oproj_pass.passes.sites.readers import split_by_readers
from oproj_pass.passes.sites.scan import Scan
from oproj_pass.passes.sites.site import Site

Search = Callable[[Scan, Globs], tuple[Sequence[Site], Sequence[NearMiss]]]


@dataclass(frozen=True)
class Role:
    """A role; ``strategies`` are names of those that fit its sites of one kind, the default first."""

    name: str
    find: Search
    strategies: tuple[str, ...]


ROLES: dict[str, Role] = {
    role.name: role
    for role in (
        Role("oproj", find_output_projections, ("row", "column", "grid")),
        Role("mlp", find_mlps, ("column_row",)),
        Role("lmhead", find_heads, ("column",)),
        Role("embedding", find_lookups, ("vocabulary",)),
    )
}


_OF_GROUPS = ("group",)


def strategy_names(site: Site) -> tuple[str, ...]:
    """The names of the strategies that fit a site, the default first."""
    return _OF_GROUPS if isinstance(site, Grouped) else ROLES[site.role].strategies


def as_named(site: Site, strategy: str | None) -> Site:
    """A site in two steps as its last GEMM alone, where a strategy of single GEMMs is named for it."""
    if isinstance(site, Grouped) and strategy is not None and strategy not in strategy_names(site):
        return site.last
    return site


def find_roles(
    gm: GraphModule,
    roles: Mapping[str, Globs],
    *,
    parameters: Mapping[str, str] | None = None,
    attention_ops: frozenset[Any] = frozenset(),
    marked: Collection[Node] = (),
) -> tuple[list[Site], list[NearMiss]]:
    """The sites of the given roles in a Dynamo or ATen graph, and every near miss with its reason.

    ``roles``: names in ``ROLES``, each with the modules that it may take. ``marked``: inputs that a compiler
    knows as stored weights, of a graph that names none. The other arguments are ``find_projections``'s.

    A tensor that several sites cut alike is one shard; one that anything else reads, a site of a role that is
    not asked for too, makes near misses. Sites are in graph order, role by role.
    """
    scan = Scan.of(gm, parameters, attention_ops, marked)
    found = [ROLES[name].find(scan, globs) for name, globs in roles.items()]
    sites = [site for taken, _ in found for site in taken]
    kept, shared = split_by_readers(sites, scan.paths)
    return kept, [*(miss for _, misses in found for miss in misses), *shared]
