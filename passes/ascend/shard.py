"""What a custom pass does to one graph of torchair or npugraph_ex.

1. Let pre-sharded weights stand for the full ones, so that their projections are found (``presharded``).
2. Find and rewrite (``ShardOProj``) those whose weights the compiler knows as parameters or buffers.
3. Spell what it emitted in the compilers' dialect (``dialect``).
4. Give every weight that is still full its slice, cut inside the graph: the compiler owns the inputs here, so
   a placeholder cannot change its meaning behind its back.

The graph stays functional: the compilers have already noted which inputs are written.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from oproj_pass.errors import SiteMismatchError
from oproj_pass.passes.ascend.dialect import respell
from oproj_pass.passes.ascend.presharded import Presharded, require_cut_alike, stand_in_for_full_weights
from oproj_pass.passes.ascend.weights import cut_in_graph, stored_weights
from oproj_pass.passes.contract import NearMiss
from oproj_pass.passes.gemm.following_step import CannotFollow
from oproj_pass.passes.graph.ops import registered
from oproj_pass.passes.graph.provenance import placeholders, value_of
from oproj_pass.passes.runner import run_passes
from oproj_pass.passes.shard import ShardOProj, ShardPlan, ShardRecord
from oproj_pass.passes.sites.expected import listed, require_expected
from oproj_pass.passes.sites.globs import unmatched_globs
from oproj_pass.passes.sites.projection import Projection
from oproj_pass.passes.strategies import STRATEGIES
from oproj_pass.passes.strategies.exchange import Exchange, Reduce

logger = logging.getLogger(__name__)

_STRANGE = "has a weight that is neither a parameter nor a buffer, or that the step writes"


@dataclass(frozen=True)
class Settings:
    """A pass's configuration, in literals; ``version`` tells the compile caches of two releases apart."""

    version: str
    group_name: str
    ranks: tuple[int, ...]
    rank: int
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    attention_ops: tuple[str, ...]
    expected_sites: int | None
    reduce_dtype: str | None
    strategy: str = "row"
    reduce: Reduce = "scatter"

    @property
    def exchange(self) -> Exchange:
        """Who exchanges, and in which type."""
        dtype = None if self.reduce_dtype is None else getattr(torch, self.reduce_dtype)
        return Exchange(len(self.ranks), self.group_name, dtype, reduce=self.reduce)


def shard(gm: GraphModule, example_inputs: Sequence[Any], settings: Settings) -> None:
    """Shard the projections of ``gm`` in place; raises an ``OProjError`` that names the layer."""
    exchange = settings.exchange
    stored = stored_weights(gm, example_inputs)
    presharded = stand_in_for_full_weights(gm, exchange)
    full = {node: value_of(node) for node in placeholders(gm)}

    def decide(sites: list[Projection], near_misses: list[NearMiss]) -> ShardPlan:
        paths = [*(site.path for site in sites), *(miss.path for miss in near_misses)]
        if idle := unmatched_globs(settings.include, settings.exclude, paths):
            logger.warning("%s", idle)
        strangers = [site for site in sites if not stored.issuperset(_cut_nodes(site, settings.strategy))]
        sites = [site for site in sites if site not in strangers]
        near_misses = [*near_misses, *(NearMiss(site.path, _STRANGE, site.nbytes) for site in strangers)]
        require_expected(sites, near_misses, settings.expected_sites)
        _require_taken(sites, near_misses, presharded)
        if exchange.size == 1:
            return ShardPlan(sites, near_misses)
        return ShardPlan.for_all(sites, near_misses, exchange, settings.strategy)

    sharding = ShardOProj(
        decide,
        include=settings.include,
        exclude=settings.exclude,
        attention_ops=registered(*settings.attention_ops),
    )
    (record,) = run_passes(gm, example_inputs, [sharding])
    assert isinstance(record, ShardRecord)
    if record.is_clean:
        logger.info(
            "no output projection sharded in this graph. %s", listed("Near misses", record.near_misses)
        )
        return
    require_cut_alike(presharded, record.regions)
    respell(record.changed, exchange, settings.ranks)
    cut_in_graph(gm, record.regions, full, presharded, settings.rank)
    gm.graph.lint()
    gm.recompile()


def _cut_nodes(site: Projection, strategy: str) -> set[Node]:
    try:
        return {tensor.node for cut in STRATEGIES[strategy].cuts(site) for tensor in cut.tensors}
    except CannotFollow:  # which the sharding refuses, with its reason
        return {tensor.node for tensor in site.gemm.k.tensors}


def _require_taken(
    sites: Sequence[Projection], near_misses: Sequence[NearMiss], presharded: Mapping[Node, Presharded]
) -> None:
    left = set(presharded).difference(on.node for site in sites for on in site.gemm.k.tensors)
    if left:
        paths = ", ".join(sorted(presharded[node].path for node in left))
        raise SiteMismatchError(
            f"{paths}: holds only this rank's slice of its weight, but is not sharded here. Keep its full "
            "weight, or let the pass take it (include, exclude, attention_ops). "
            f"{listed('Near misses', near_misses)}"
        )
