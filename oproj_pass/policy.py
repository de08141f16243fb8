"""Decides, for one captured graph, which projections to shard and over which ranks; refuses what is wrong.

Everything that can be refused is refused here, before any weight or any compiler is touched.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from oproj_pass.config import OProjConfig
from oproj_pass.eager import user_frames_in_compiled_call
from oproj_pass.errors import EagerStepError, SiteMismatchError
from oproj_pass.groups import ShardGroup, automatic_size, require_fitting_size, shard_group, world_size
from oproj_pass.passes import Exchange, NearMiss, Projection, ShardOProj, ShardPlan
from oproj_pass.passes.ops import registered
from oproj_pass.passes.shard_oproj import require_divisible
from oproj_pass.released import Released
from oproj_pass.row_counts import RowCounts
from oproj_pass.store import ShardStore
from oproj_pass.weight_checks import cut_refusal, keep_reason, require_ready

logger = logging.getLogger(__name__)


class GraphPolicy:
    """The policy of ``ShardOProj`` for one graph.

    Afterwards ``size`` holds N; ``group`` the ranks, None if nothing is sharded; ``rows`` the row counts to
    compare at each call, None if there are none; ``rows_compared`` when they are compared, in words.
    """

    def __init__(
        self, gm: GraphModule, inputs: Mapping[Node, Any], config: OProjConfig, store: ShardStore
    ) -> None:
        self.gm, self.inputs, self.config, self.store = gm, inputs, config, store
        self.size = 1
        self.group: ShardGroup | None = None
        self.rows: RowCounts | None = None
        self.rows_compared = "never"

    def __call__(self, sites: list[Projection], near_misses: list[NearMiss]) -> ShardPlan:
        """Judge what was found; raises an ``OProjError`` that names the layer and the remedy."""
        size = self.size = shard_size(sites, self.config)
        if size > 1:
            sites, near_misses = self._without_shared_storage(sites, near_misses)
        _require_expected(sites, near_misses, self.config.expected_sites)
        if size <= 1:
            return ShardPlan(sites, near_misses, None)
        require_fitting_size(size, self.config.group)
        require_divisible(sites, size)
        self._require_sites(sites, near_misses)
        if not sites:  # peers need not have this graph: nothing may wait for them
            return ShardPlan(sites, near_misses, None)
        for site in sites:
            for cut in site.slices:
                require_ready(self.inputs[cut.node], site.path)
        self.group = shard_group(size, self.config.group, self.config.timeout)
        return ShardPlan(sites, near_misses, self._exchange(self.group, sites))

    def sharding_pass(self) -> ShardOProj:
        """The pass that searches as the options say and asks this policy."""
        return ShardOProj(
            self,
            include=self.config.include,
            exclude=self.config.exclude,
            attention_ops=registered(*self.config.attention_ops),
        )

    def _exchange(self, group: ShardGroup, sites: Sequence[Projection]) -> Exchange:
        compares = self.config.agree_on_rows and self.config.capacity is None
        self.rows = RowCounts.of(sites, list(self.inputs)) if compares else None
        in_graph = self.config.check_uniform or (compares and self.rows is None)
        when = {"at each call": self.rows is not None, "before each exchange": in_graph}
        self.rows_compared = " and ".join(time for time, holds in when.items() if holds) or "never"
        return Exchange(
            size=group.size,
            group_name=group.device.group_name,
            reduce_dtype=self.config.reduce_dtype,
            control_group_name=group.control.group_name if in_graph else None,
            capacity=self.config.capacity,
        )

    def _without_shared_storage(
        self, sites: list[Projection], near_misses: list[NearMiss]
    ) -> tuple[list[Projection], list[NearMiss]]:
        others = _storages({cut.node for site in sites for cut in site.slices}, self.inputs)
        judged = [(site, self._storage_refusal(site, others)) for site in sites]
        refused = [NearMiss(site.path, reason, site.nbytes) for site, reason in judged if reason]
        return [site for site, reason in judged if not reason], [*near_misses, *refused]

    def _storage_refusal(self, site: Projection, others: Mapping[int, Node]) -> str | None:
        weights = [self.inputs[cut.node] for cut in site.slices]
        refusals = (self._weight_refusal(weight, others) for weight in weights)
        return next((refusal for refusal in refusals if refusal), None)

    def _weight_refusal(self, weight: Any, others: Mapping[int, Node]) -> str | None:
        if not isinstance(weight, Tensor) or isinstance(weight, Released):
            return None
        if (reason := cut_refusal(weight) or keep_reason(weight)) is not None:
            return reason
        storage = weight.untyped_storage()
        if storage._cdata in others:
            return f"has a weight that shares its storage with `{others[storage._cdata].name}`"
        reader = self.store.reader_of(weight)
        return reader and f"has a weight that another compiled graph reads in full (`{reader}`)"

    def _require_sites(self, sites: Sequence[Projection], near_misses: Sequence[NearMiss]) -> None:
        reason: Any = getattr(self.gm, "compile_subgraph_reason", None)
        broken = reason is not None and reason.graph_break
        lost = next((miss for miss in near_misses if miss.left_by_graph_break), None)
        if broken and lost is not None:
            raise EagerStepError(
                f"{lost.path}: a graph break separates this attention from its projection, which would then "
                f"run unsharded. The break: {reason.reason.splitlines()[0]}. Remove it, or compile with "
                "fullgraph=True to see it as an error."
            )
        is_part = broken or any(user_frames_in_compiled_call())
        if not sites and not is_part:
            self._refuse_empty(near_misses)

    def _refuse_empty(self, near_misses: Sequence[NearMiss]) -> None:
        message = f"no attention output projection to shard. {listed('Near misses', near_misses)}"
        if self.config.oproj_tensor_parallel_size != "auto":
            raise SiteMismatchError(
                f"oproj_tensor_parallel_size = {self.config.oproj_tensor_parallel_size}, but the graph holds "
                f"{message} Set it to 0, or register the model's attention operator in `attention_ops`."
            )
        logger.warning("the graph holds %s", message)


def shard_size(sites: Sequence[Projection], config: OProjConfig) -> int:
    """The ranks that share each projection of one graph, N; 0 and 1 rewrite nothing."""
    if config.plan is not None and not config.plan.covers:
        logger.warning("o_proj sharding is off: %s", config.plan.warning)
        return 0
    if isinstance(config.oproj_tensor_parallel_size, int):
        return config.oproj_tensor_parallel_size
    world, features = world_size(config.group), [site.in_features for site in sites]
    size = automatic_size(world, [site.parts for site in sites])
    if config.group is not None and sites:
        size = world
    logger.info(
        "oproj_tensor_parallel_size = auto: %d (world of %d ranks, K of %s)",
        size,
        world,
        sorted(set(features)),
    )
    return size


def _storages(weights: Collection[Node], inputs: Mapping[Node, Any]) -> dict[int, Node]:
    """The storages behind all inputs that are not among ``weights``, by identity."""
    rest = {
        node: value for node, value in inputs.items() if node not in weights and isinstance(value, Tensor)
    }
    return {value.untyped_storage()._cdata: node for node, value in rest.items()}


def _require_expected(
    sites: Sequence[Projection], near_misses: Sequence[NearMiss], expected: int | None
) -> None:
    if expected is not None and len(sites) != expected:
        raise SiteMismatchError(
            f"expected_sites = {expected}, found {len(sites)}. "
            f"{listed('Found', [site.path for site in sites])} {listed('Near misses', near_misses)}"
        )


def listed(title: str, items: Sequence[Any]) -> str:
    """Paths or near misses as one sentence of a message."""
    lines = [f"{item.path}: {item.reason}" if isinstance(item, NearMiss) else str(item) for item in items]
    return f"{title}: {'; '.join(lines) if lines else 'none'}."
