"""How partial sums become one: as the options say, or what takes the group less time, measured on it once."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.fx import Node

from oproj_pass.backend.policy import Decision
from oproj_pass.backend.strategy import mesh_of
from oproj_pass.backend.timing import slowest_microseconds
from oproj_pass.config import OProjConfig
from oproj_pass.groups import ShardGroup, ShardGroups
from oproj_pass.passes import Axis, Lookup, Site
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.strategies.exchange import Reduce

logger = logging.getLogger(__name__)

_ROWS = 64  # of a rank, where a symbolic count has no example


@dataclass(frozen=True)
class PartialSums:
    """What one site adds up: ``rows`` of every rank of ``group``, ``features`` each, on ``device``."""

    group: ShardGroup
    rows: int
    features: int
    dtype: torch.dtype
    device: torch.device

    def in_words(self) -> str:
        """For messages, and for comparing ranks."""
        shape = f"{self.rows * self.group.size} x {self.features}"
        return f"{shape} partial sums of {self.group.size} ranks in {str(self.dtype).removeprefix('torch.')}"


def chosen_reduce(
    decision: Decision, inputs: Mapping[Node, Any], groups: ShardGroups, config: OProjConfig
) -> Reduce:
    """The way to add up in one graph; raises ``GroupMismatchError`` if a peer is not at the same graph."""
    if config.reduce != "auto":
        return config.reduce
    sums = [_partial_sums(site, decision, inputs, groups, config) for site in decision.sharded]
    largest = max((found for found in sums if found), key=lambda one: one.rows * one.features, default=None)
    if largest is None or not groups.joint.has_peers:
        logger.info("reduce = auto: scatter, for there is nothing to measure")
        return "scatter"
    return _measured(largest, groups.joint, config.timeout)


def _partial_sums(
    site: Site,
    decision: Decision,
    inputs: Mapping[Node, Any],
    groups: ShardGroups,
    config: OProjConfig,
) -> PartialSums | None:
    if isinstance(site, Lookup) or not any(cut.axis is Axis.K for cut in decision.cuts_of(site)):
        return None
    mesh = mesh_of(decision.strategy_of(site))
    product = value_of(site.node)
    wide = config.reduce_dtype if product.is_floating_point() else None
    return PartialSums(
        group=groups.along(Axis.K, decision.size_of(site), mesh),
        rows=(config.capacity or _rows(value_of(site.input))) * mesh.get(Axis.H, 1),
        features=product.shape[-1] // mesh.get(Axis.H, 1),
        dtype=wide or product.dtype,
        device=inputs[site.stored[0].node].device,
    )


def _rows(x: Tensor) -> int:
    """Rows of ``x`` [.., K]; of a symbolic count those that the graph was traced with."""
    count = prod(x.shape[:-1])
    return count if isinstance(count, int) else count.node.hint or _ROWS


def _measured(sums: PartialSums, joint: ShardGroup, timeout: float) -> Reduce:
    mine = torch.zeros(sums.rows, sums.features, dtype=sums.dtype, device=sums.device)
    brought = mine.repeat(sums.group.size, 1)
    ways: dict[str, Callable[[], object]] = {
        way: partial(run, sums, brought, mine) for way, run in WAYS.items()
    }
    slowest = slowest_microseconds(ways, sums.in_words(), joint, sums.device, timeout)
    chosen: Reduce = min(WAYS, key=lambda way: slowest[way])
    logger.info(
        "reduce = auto: %s, for %s (%s, the slowest rank's median)",
        chosen, sums.in_words(), ", ".join(f"{way} {taken:.0f} us" for way, taken in slowest.items()),
    )  # fmt: skip
    return chosen


def _scatter(sums: PartialSums, brought: Tensor, mine: Tensor) -> None:
    dist.reduce_scatter_single(mine, brought, group=sums.group.device)


def _exchange(sums: PartialSums, brought: Tensor, mine: Tensor) -> None:
    received = torch.empty_like(brought)
    dist.all_to_all_single(received, brought, group=sums.group.device)
    parts = received.chunk(sums.group.size)
    is_half = brought.is_floating_point() and brought.element_size() < 4
    mine.copy_(reduce(torch.add, [part.float() if is_half else part for part in parts]))


WAYS: dict[Reduce, Callable[[PartialSums, Tensor, Tensor], None]] = {
    "scatter": _scatter, "exchange": _exchange,
}  # fmt: skip
"""How to add up what ``brought`` [N*T, H] holds, into ``mine`` [T, H]."""
