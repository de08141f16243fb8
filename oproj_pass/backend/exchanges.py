"""Who exchanges in one graph: the groups that its decision needs, and what strategies are told of them."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from oproj_pass.backend.policy import Decision
from oproj_pass.backend.row_counts import ComparedRows
from oproj_pass.backend.strategy import mesh_of
from oproj_pass.config import OProjConfig
from oproj_pass.groups import ShardGroups
from oproj_pass.passes import Assignment, Axis, Exchange, Strategy
from oproj_pass.passes.strategies.chunks import unchunked_reason
from oproj_pass.passes.strategies.exchange import Peers, Reduce

logger = logging.getLogger(__name__)


def groups_of(decision: Decision, config: OProjConfig) -> ShardGroups:
    """This rank's groups for the sites that are sharded."""
    used = map(decision.size_of, decision.sharded)
    return ShardGroups.of(used, decision.group_sizes, config.group, config.timeout, decision.grids)


def exchanges_over(
    groups: ShardGroups, rows: ComparedRows, config: OProjConfig, reduce: Reduce, chunks: int
) -> dict[int, Exchange]:
    """Who exchanges, by the size of the group, and how, as the options say."""
    return {
        size: Exchange(
            size=size,
            group_name=group.device.group_name,
            reduce_dtype=config.reduce_dtype,
            control_group_name=groups.joint.control.group_name if rows.in_graph else None,
            capacity=config.capacity,
            reduce=reduce,
            chunks=chunks,
        )
        for size, group in groups.by_size.items()
    }


def on_mesh(exchange: Exchange, groups: ShardGroups, strategy: Strategy[Any]) -> Exchange:
    """The exchange of a strategy that lays the group's ranks out in two dimensions; any other as it is."""
    if not (mesh := mesh_of(strategy)):
        return exchange
    sides = zip(mesh, groups.grids[mesh[Axis.K], mesh[Axis.H]], strict=True)
    peers = tuple((axis, Peers(group.size, group.device.group_name)) for axis, group in sides)
    return replace(exchange, mesh=peers)


def log_unchunked(assignments: Sequence[Assignment]) -> None:
    """Say which layers exchange their rows in one piece although chunks are asked for, and why."""
    asked_for = [part for part in assignments if part.exchange.chunks > 1]
    reasons = {
        part.site.path: reason
        for part in asked_for
        if (reason := unchunked_reason(part.site, part.strategy, part.exchange)) is not None
    }
    for reason in dict.fromkeys(reasons.values()):
        paths = [path for path, other in reasons.items() if other == reason]
        logger.info(
            "chunks = %d is left out for %d layers, the first is %s: %s",
            asked_for[0].exchange.chunks, len(paths), paths[0], reason,
        )  # fmt: skip
