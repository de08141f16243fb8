"""Shards attention output projections over the ranks of a group.

1. Scan: find the projections (``sites``).
2. Decide: a policy picks the sites to take and the exchange to use, or raises; nothing is changed before.
3. Rewrite: per site, all_to_all -> partial GEMM -> reduce_scatter -> bias. The weight's placeholder stays and
   changes its meaning, from the full weight to this rank's slice along the summed dimension; so the pass
   composes with any compiler that runs after it. Every rank rewrites alike; only the slices differ.

It leaves the weights themselves alone: ``shard_of`` cuts a slice, storing and releasing is the caller's.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule, Node

from oproj_pass.errors import ConfigError
from oproj_pass.passes.effects import emit_writes
from oproj_pass.passes.exchange import Exchange, emit_reduce, emit_scatter
from oproj_pass.passes.metadata import inherit_origin, value_key
from oproj_pass.passes.provenance import value_of
from oproj_pass.passes.row_scales import emit_row_scale
from oproj_pass.passes.runner import PassRecord
from oproj_pass.passes.sites import NearMiss, Projection, find_projections
from oproj_pass.passes.slices import shard_of


@dataclass(frozen=True)
class ShardPlan:
    """What a policy decided: the sites to rewrite, what is left alone, the exchange (None: no rewrite)."""

    sites: Sequence[Projection]
    near_misses: Sequence[NearMiss]
    exchange: Exchange | None


Policy = Callable[[list[Projection], list[NearMiss]], ShardPlan]


class ShardOProj:
    """The pass. Called with a graph module and its example inputs, it rewrites in place.

    ``policy``: an ``Exchange`` (take every site), or a callable that decides from sites and near misses.
    ``parameters``: placeholder name to parameter path, for an exported program
    (``graph_signature.inputs_to_parameters``). The other arguments are ``find_projections``'s.
    """

    name = "shard_oproj"

    def __init__(
        self,
        policy: Exchange | Policy,
        *,
        parameters: Mapping[str, str] | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        attention_ops: frozenset[Any] = frozenset(),
    ) -> None:
        self.policy = take_all(policy) if isinstance(policy, Exchange) else policy
        self.find = {
            "parameters": parameters, "include": include, "exclude": exclude, "attention_ops": attention_ops,
        }  # fmt: skip

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> PassRecord:
        """Rewrite ``gm``; ``example_inputs`` are left as they are."""
        start = time.perf_counter()
        plan = self.policy(*find_projections(gm, **self.find))  # type: ignore[arg-type]
        changed: list[Node] = []
        if plan.exchange is not None:
            require_divisible(plan.sites, plan.exchange.size)
            changed = [node for site in plan.sites for node in _rewrite(gm, site, plan.exchange)]
            changed = [*_narrow_weights(plan.sites, plan.exchange.size), *changed]
        return PassRecord(
            name=self.name,
            matches=tuple(plan.sites),
            near_misses=tuple(plan.near_misses),
            changed=tuple(changed),
            seconds=time.perf_counter() - start,
        )


def take_all(exchange: Exchange) -> Policy:
    """The policy that takes every site."""
    return lambda sites, near_misses: ShardPlan(sites, near_misses, exchange)


def require_divisible(sites: Sequence[Projection], size: int) -> None:
    """Raise ``ConfigError`` for the first site whose K cannot be split over the group's ranks."""
    for site in sites:
        if site.parts % size:
            fitting = [n for n in (2, 4, 8, 16, 32) if site.parts % n == 0]
            raise ConfigError(
                f"{site.path}: K = {site.in_features} input features cannot be split over "
                f"oproj_tensor_parallel_size = {size} ranks{_unit(site)}. Sizes that divide this K: "
                f"{', '.join(map(str, fitting)) or 'none but 1'}."
            )


def _unit(site: Projection) -> str:
    if site.unit == 1:
        return ""
    return f": {site.unit} consecutive features share a scale or a packed word and stay on one rank"


def _rewrite(gm: GraphModule, site: Projection, exchange: Exchange) -> list[Node]:
    graph, gemm = gm.graph, site.gemm
    before = gemm.node.prev
    with graph.inserting_before(gemm.node):
        rows = emit_scatter(graph, gemm.input, site.in_features, exchange, site.path)
        scales = [emit_row_scale(graph, scale, gemm.input, exchange, site.path) for scale in gemm.row_scales]
        partial = gemm.emit_partial(graph, rows, *scales)
        result = emit_writes(graph, gemm.node, emit_reduce(graph, partial, gemm, exchange))
    created = _between(before, gemm.node)
    for node in created:
        inherit_origin(node, gemm.node)
    gemm.node.replace_all_uses_with(result)
    gemm.erase()
    return created


def _between(before: Node, after: Node) -> list[Node]:
    nodes, node = [], before.next
    while node is not after:
        nodes.append(node)
        node = node.next
    return nodes


def _narrow_weights(sites: Sequence[Projection], size: int) -> list[Node]:
    """Give each stored tensor's placeholder its slice's shape; returns the constants that follow from it."""
    for literal in {literal for site in sites for literal in site.gemm.literals}:
        literal.shrink(size)
    for node, cut in {cut.node: cut for site in sites for cut in site.slices}.items():
        node.meta[value_key(node)] = shard_of(cut, value_of(node), 0, size)
    constants = {node for site in sites for node in site.gemm.constants}
    return [node for node in sites[0].gemm.node.graph.nodes if node in constants] if constants else []
