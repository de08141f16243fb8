"""Decides, for one captured graph, which of the sites that were found are sharded, and over how many ranks.

Everything that can be refused is refused here, before any group, weight or compiler is touched: no side
effects but log lines.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.fx import GraphModule, Node

from oproj_pass.backend.sizes import resolved_sizes
from oproj_pass.backend.strategy import mesh_of, strategies_of
from oproj_pass.config import OProjConfig
from oproj_pass.eager import user_frames_in_compiled_call
from oproj_pass.errors import ConfigError, EagerStepError, SiteMismatchError
from oproj_pass.groups import require_fitting_size
from oproj_pass.passes import Axis, NearMiss, Site, StoredAxis, Strategy
from oproj_pass.passes.sites.expected import listed, require_expected
from oproj_pass.passes.sites.globs import unmatched_globs
from oproj_pass.passes.sites.options import ROLE_TITLES, of_role, size_option

logger = logging.getLogger(__name__)


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
    """What becomes of one graph: its sites, each shared by as many ranks as its role's size says.

    0 and 1 share nothing.
    """

    sizes: Mapping[str, int]
    sites: Sequence[Site]
    near_misses: Sequence[NearMiss]
    strategies: Mapping[Node, Strategy[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, sites: Sequence[Site], near_misses: Sequence[NearMiss], config: OProjConfig) -> "Decision":
        """What the options make of what was found.

        Raises ``ConfigError`` for a size that does not fit the world, a layer, or another role's use of it.
        """
        sizes = resolved_sizes(sites, config)
        for role, size in sizes.items():
            if size > 1:
                require_fitting_size(size, config.group, role)
        undecided = cls(sizes, sites, near_misses)
        _require_cut_alike(undecided)
        return replace(undecided, strategies=strategies_of(undecided.sharded, sizes, config))

    @property
    def sharded(self) -> list[Site]:
        """The sites that are rewritten; a graph without any is not, and no peer need have it."""
        return [site for site in self.sites if self.size_of(site) > 1]

    @property
    def group_sizes(self) -> list[int]:
        """Every size above 1, whether or not this graph has sites of its role."""
        return [size for size in self.sizes.values() if size > 1]

    def size_of(self, item: Site | NearMiss) -> int:
        """The ranks that share a site's weights."""
        return self.sizes.get(item.role, 0)

    def strategy_of(self, site: Site) -> Strategy[Any]:
        """The strategy that shares a site which is sharded."""
        return self.strategies[site.node]

    def cuts_of(self, site: Site) -> tuple[StoredAxis, ...]:
        """What is cut of a site which is sharded."""
        return self.strategy_of(site).cuts(site)

    @property
    def grids(self) -> set[tuple[int, int]]:
        """The shapes of the grids among the strategies."""
        meshes = map(mesh_of, self.strategies.values())
        return {(mesh[Axis.K], mesh[Axis.H]) for mesh in meshes if mesh}


def decide(
    sites: Sequence[Site], near_misses: Sequence[NearMiss], config: OProjConfig, place: GraphPlace
) -> Decision:
    """Judge what was found; raises an ``OProjError`` that names the layer and the remedy."""
    _report_idle_globs([*sites, *near_misses], config, place)
    require_expected(sites, near_misses, config.expected_sites)
    decision = Decision.of(sites, near_misses, config)
    for role, size in decision.sizes.items():
        if size > 1:
            _require_sites(role, of_role(sites, role), of_role(near_misses, role), config, place)
    return decision


def _require_cut_alike(decision: Decision) -> None:
    """A weight that two roles share (an LM head tied to its embedding) is one shard, or none."""
    readers: dict[Node, Site] = {}
    for site in decision.sites:
        for tensor in site.stored:
            other = readers.setdefault(tensor.node, site)
            if decision.size_of(other) != decision.size_of(site):
                settings = [f"{size_option(item.role)} = {decision.size_of(item)}" for item in (other, site)]
                raise ConfigError(
                    f"{other.path} and {site.path} share one weight, and {' and '.join(settings)}: it is one "
                    "shard for both, so give both one size, or untie them."
                )


def _report_idle_globs(found: Sequence[Site | NearMiss], config: OProjConfig, place: GraphPlace) -> None:
    """A glob that matches nothing in a part of a model may match in the next one."""
    for include, exclude, paths in _globs(found, config):
        if idle := unmatched_globs(include, exclude, paths):
            logger.log(logging.INFO if place.is_part else logging.WARNING, "%s", idle)


def _globs(
    found: Sequence[Site | NearMiss], config: OProjConfig
) -> Iterable[tuple[Sequence[str], Sequence[str], list[str]]]:
    """``include`` and ``exclude`` with the paths that they speak of: of all roles, or of one."""
    for option in ("include", "exclude"):
        globs = getattr(config, option)
        by_role = globs if isinstance(globs, Mapping) else {None: globs}
        for role, patterns in by_role.items():
            paths = [item.path for item in found if role in (None, item.role)]
            yield (patterns, (), paths) if option == "include" else ((), patterns, paths)


def _require_sites(
    role: str,
    sites: Sequence[Site],
    near_misses: Sequence[NearMiss],
    config: OProjConfig,
    place: GraphPlace,
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
    require_asked_for(role, config, "the graph holds", near_misses)


def require_asked_for(role: str, config: OProjConfig, where: str, near_misses: Sequence[NearMiss]) -> None:
    """Raise ``SiteMismatchError`` where a size was asked for and there is nothing to shard; warn for "auto".

    ``where``: who has nothing, with its verb (``"the graph holds"``).
    """
    title, missed = ROLE_TITLES[role], listed("Near misses", near_misses)
    if (size := config.sizes[role]) == "auto":
        logger.warning("%s no %s to shard. %s", where, title, missed)
        return
    register = ", or register the model's attention operator in `attention_ops`" if role == "oproj" else ""
    raise SiteMismatchError(
        f"{size_option(role)} = {size}, but {where} no {title} to shard. {missed} Set it to 0{register}."
    )
