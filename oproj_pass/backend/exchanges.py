"""Who exchanges in one graph: the groups that its decision needs, and what strategies are told of them."""

from dataclasses import replace
from typing import Any

from oproj_pass.backend.policy import Decision
from oproj_pass.backend.row_counts import ComparedRows
from oproj_pass.backend.strategy import mesh_of
from oproj_pass.config import OProjConfig
from oproj_pass.groups import ShardGroups
from oproj_pass.passes import Axis, Exchange, Strategy
from oproj_pass.passes.strategies.exchange import Peers, Reduce


def groups_of(decision: Decision, config: OProjConfig) -> ShardGroups:
    """This rank's groups for the sites that are sharded."""
    used = map(decision.size_of, decision.sharded)
    return ShardGroups.of(used, decision.group_sizes, config.group, config.timeout, decision.grids)


def exchanges_over(
    groups: ShardGroups, rows: ComparedRows, config: OProjConfig, reduce: Reduce
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
