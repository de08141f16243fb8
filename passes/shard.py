"""Shards sites over the ranks of a group, each by the strategy that it was given.

1. Scan: find the sites (``sites``), unless a plan was made already.
2. Decide: a policy answers with a plan, which strategy and which group for which site, or raises; nothing is
   changed before.
3. Rewrite: per site, the strategy writes what takes the GEMM's place. A weight's placeholder stays and
   changes its meaning, from the full tensor to this rank's part of it; so the pass composes with any compiler
   that runs after it. Every rank rewrites alike; only the parts differ.

It leaves the weights themselves alone: ``shard_of`` cuts a part, storing and releasing is the caller's. What
it wrote is returned region by region, for later passes to read.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from oproj_pass.errors import ConfigError
from oproj_pass.passes.contract import NearMiss, PassRecord
from oproj_pass.passes.gemm.axes import Axis, StoredAxis
from oproj_pass.passes.gemm.following_step import CannotFollow
from oproj_pass.passes.gemm.split import Split
from oproj_pass.passes.graph.effects import emit_writes
from oproj_pass.passes.graph.metadata import SharedValues, inherit_origin, value_key
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.sites.attention_output import find_projections
from oproj_pass.passes.sites.options import size_option
from oproj_pass.passes.sites.projection import Projection
from oproj_pass.passes.sites.site import Site
from oproj_pass.passes.strategies import STRATEGIES, Strategy
from oproj_pass.passes.strategies.assignment import Assignment
from oproj_pass.passes.strategies.chunks import unchunked_reason, write_chunks
from oproj_pass.passes.strategies.cuts import require_one_cut_each
from oproj_pass.passes.strategies.exchange import Exchange
from oproj_pass.passes.strategies.region import CutTensor, ShardedRegion


@dataclass(frozen=True)
class ShardPlan:
    """What a policy decided: the sites it found fit, what is left alone, and the sites that are sharded."""

    sites: Sequence[Site]
    near_misses: Sequence[NearMiss]
    assignments: Sequence[Assignment] = ()

    @classmethod
    def for_all(
        cls,
        sites: Sequence[Site],
        near_misses: Sequence[NearMiss],
        exchange: Exchange,
        strategy: str = "row",
    ) -> "ShardPlan":
        """Every site by one strategy over one group."""
        chosen = STRATEGIES[strategy]
        return cls(sites, near_misses, [Assignment(site, chosen, exchange) for site in sites])


@dataclass(frozen=True, repr=False)
class ShardRecord(PassRecord):
    """A record of what is sharded now; ``regions`` as the plan has their sites, role by role."""

    regions: tuple[ShardedRegion, ...] = ()

    @cached_property
    def tensors(self) -> Mapping[Node, CutTensor]:
        """Each placeholder that now stands for a rank's part."""
        return {node: cut for region in self.regions for node, cut in region.by_node.items()}

    def role_of(self, tensor: Node) -> str:
        """What a stored tensor is here for; every role of one that several sites share."""
        return "+".join(dict.fromkeys(region.role for region in self._readers[tensor]))

    def manner_of(self, tensor: Node) -> str:
        """How the rows are exchanged that a stored tensor multiplies; in each way, where sites share it."""
        return " + ".join(dict.fromkeys(region.manner for region in self._readers[tensor]))

    @cached_property
    def _readers(self) -> Mapping[Node, list[ShardedRegion]]:
        """The regions that read each stored tensor, in their order."""
        readers: dict[Node, list[ShardedRegion]] = {node: [] for node in self.tensors}
        for region in self.regions:
            for node in region.by_node:
                readers[node].append(region)
        return readers


Policy = Callable[[list[Projection], list[NearMiss]], ShardPlan]


class ShardOProj:
    """The pass. Called with a graph module and its example inputs, it rewrites in place.

    ``policy``: an ``Exchange`` (row-shard every site over it), a ``ShardPlan`` that was made from this very
    graph, or a callable that makes one from sites and near misses. ``parameters``: placeholder name to
    parameter path, for an exported program (``graph_signature.inputs_to_parameters``). ``regions``: a list
    that the regions are added to, for passes that are built before this one has run. The other arguments are
    ``find_projections``'s.
    """

    name = "shard_oproj"

    def __init__(
        self,
        policy: Exchange | ShardPlan | Policy,
        *,
        parameters: Mapping[str, str] | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        attention_ops: frozenset[Any] = frozenset(),
        regions: list[ShardedRegion] | None = None,
    ) -> None:
        if not (isinstance(policy, Exchange | ShardPlan) or callable(policy)):
            raise ConfigError(
                f"ShardOProj: policy is {policy!r}, required: an Exchange, a ShardPlan or a callable that "
                "makes one. To share every projection over N ranks: ShardOProj(Exchange(N, group_name))."
            )
        self.policy = policy
        self.regions = [] if regions is None else regions
        self.find = {
            "parameters": parameters, "include": include, "exclude": exclude, "attention_ops": attention_ops,
        }  # fmt: skip

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> ShardRecord:
        """Rewrite ``gm``; ``example_inputs`` are left as they are."""
        start = time.perf_counter()
        plan = self._plan(gm)
        cuts = [(part, cut) for part in plan.assignments for cut in _cuts_of(part)]
        require_one_cut_each(cuts)
        regions = [_rewrite(gm, assignment) for assignment in plan.assignments]
        changed = [*_narrow(gm, cuts), *(node for region in regions for node in region.nodes)]
        self.regions += regions
        return ShardRecord(
            name=self.name,
            matches=tuple(plan.sites),
            near_misses=tuple(plan.near_misses),
            changed=tuple(changed),
            seconds=time.perf_counter() - start,
            regions=tuple(regions),
        )

    def _plan(self, gm: GraphModule) -> ShardPlan:
        if isinstance(self.policy, ShardPlan):
            return self.policy
        found = find_projections(gm, **self.find)  # type: ignore[arg-type]
        if isinstance(self.policy, Exchange):
            return ShardPlan.for_all(*found, self.policy)
        return self.policy(*found)


_WHOLE: Mapping[Axis, int] = {}


def _cuts_of(part: Assignment) -> tuple[StoredAxis, ...]:
    mesh = {axis: peers.size for axis, peers in part.exchange.mesh}
    return required_cuts(part.site, part.strategy, part.exchange.size, mesh)


def required_cuts(
    site: Site, strategy: Strategy[Any], size: int, mesh: Mapping[Axis, int] = _WHOLE
) -> tuple[StoredAxis, ...]:
    """The cuts of a site's strategy; ``ConfigError`` for an axis that cannot be split.

    Over ``size`` ranks, or as many of them as ``mesh`` says for an axis.
    """
    try:
        cuts = strategy.cuts(site)
    except CannotFollow as reason:
        raise ConfigError(
            f"{site.path}: strategy {strategy.name!r} does not fit, since this layer has a weight that "
            f"{reason}. Choose another strategy for it, or exclude it."
        ) from reason
    for cut in cuts:
        _require_divisible(site, cut, size, mesh.get(cut.axis, size))
    return cuts


def _require_divisible(site: Site, cut: StoredAxis, size: int, parts: int) -> None:
    """Raise ``ConfigError`` unless an axis of the site falls into ``parts`` parts, over ``size`` ranks."""
    if cut.fits(parts):
        return
    over = f"{size_option(site.role)} = {size} ranks"
    over = over if parts == size else f"{parts} parts of a grid of {over}"
    fitting = [n for n in (2, 4, 8, 16, 32) if cut.fits(n)]
    unit = (
        ""
        if cut.unit == 1
        else f": {cut.unit} consecutive features share a scale, a packed word or a group and stay on one rank"
    )
    raise ConfigError(
        f"{site.path}: {cut.axis.name} = {cut.extent} {cut.axis.value} cannot be split over "
        f"{over}{unit}. Sizes that divide this {cut.axis.name}: "
        f"{', '.join(map(str, fitting)) or 'none but 1'}."
    )


def _rewrite(gm: GraphModule, assignment: Assignment) -> ShardedRegion:
    site = assignment.site
    with gm.graph.inserting_before(site.node):
        region = _write(gm.graph, assignment)
        result = emit_writes(gm.graph, site.node, region.nodes[-1])
    if result is not region.nodes[-1]:
        region = replace(region, finish=(*region.finish, result))
    for node in region.nodes:
        if "nn_module_stack" not in node.meta:  # an MLP's nodes between its GEMMs keep their own
            inherit_origin(node, site.node)
    site.node.replace_all_uses_with(result)
    _erase(site)
    return region


def _erase(site: Site) -> None:
    """Remove the node, which nothing may read any more, and the constants made for it alone."""
    for node in (site.node, *reversed(site.constants)):
        if not node.users:
            node.graph.erase_node(node)


def _write(graph: Graph, assignment: Assignment) -> ShardedRegion:
    site, strategy, exchange = assignment.site, assignment.strategy, assignment.exchange
    is_whole = exchange.chunks == 1 or unchunked_reason(site, strategy, exchange) is not None
    if isinstance(site, Projection) and not is_whole:
        return write_chunks(graph, site, strategy, exchange)
    return strategy.write(graph, site, replace(exchange, chunks=1))


def _narrow(gm: GraphModule, cuts: Sequence[tuple[Assignment, StoredAxis]]) -> list[Node]:
    """Give each stored tensor's placeholder its part's shape; returns the constants that follow from it."""
    sized = [(cut, part.exchange.over(cut.axis).size) for part, cut in cuts]
    for literal, size in {(literal, size): None for cut, size in sized for literal in cut.literals}:
        literal.shrink(size)
    values: dict[str, SharedValues] = {}
    for node, split, size in {
        (tensor.node, tensor.split, size): None for cut, size in sized for tensor in cut.tensors
    }:
        key, full = value_key(node), value_of(node)
        shared = values.setdefault(key, SharedValues(key))
        node.meta[key] = shared.of(_first_part, full, split, size)
    constants = {node for _, cut in cuts for node in cut.constants}
    return [node for node in gm.graph.nodes if node in constants] if constants else []


def _first_part(full: Tensor, split: Split, size: int) -> Tensor:
    return split.part_of(full, 0, size).clone()
