"""In how many chunks a step's rows are exchanged: as the options say, or what takes the group less time.

Whether one chunk's exchange runs under another's product depends on the wire and on what is left of the
machine beside it, so ``"auto"`` tries: a whole step of the largest projection, in one piece and in chunks.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from oproj_pass.backend.policy import Decision
from oproj_pass.backend.timing import slowest_microseconds
from oproj_pass.config import OProjConfig
from oproj_pass.groups import ShardGroup, ShardGroups
from oproj_pass.passes import Exchange, Projection
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.strategies.chunks import unchunked_reason
from oproj_pass.passes.strategies.exchange import Reduce
from oproj_pass.passes.strategies.row import Row

logger = logging.getLogger(__name__)

_CANDIDATES = (2, 4)
_WORTHWHILE = 0.95  # of a step in one piece: what is measured varies by less


@dataclass(frozen=True)
class _Step:
    """A row sharded projection: ``rows`` of every rank of ``group``, [T, K] to [T, H], on ``device``."""

    group: ShardGroup
    rows: int
    in_features: int
    out_features: int
    dtype: torch.dtype
    device: torch.device

    def in_words(self) -> str:
        """For messages, and for comparing ranks."""
        dtype = str(self.dtype).removeprefix("torch.")
        shape = f"{self.rows} x {self.in_features} rows and {self.out_features} outputs"
        return f"{shape} over {self.group.size} ranks in {dtype}"


def chosen_chunks(
    decision: Decision,
    inputs: Mapping[Node, Any],
    groups: ShardGroups,
    config: OProjConfig,
    reduce: Reduce,
) -> int:
    """The number of chunks in one graph; raises ``GroupMismatchError`` if a peer is not at the same graph."""
    if isinstance(config.chunks, int):
        return config.chunks
    sites = [
        site
        for site in decision.sharded
        if isinstance(site, Projection) and isinstance(decision.strategy_of(site), Row)
    ]
    fitting = {site.node: _fitting(site, decision.size_of(site), config) for site in sites}
    taken = [site for site in sites if fitting[site.node]]
    if not taken or not groups.joint.has_peers:
        logger.info("chunks = auto: 1, for no projection that is sharded by rows can be exchanged in chunks")
        return 1
    largest = max(taken, key=lambda site: _rows(site) * site.in_features)
    x = value_of(largest.node)
    step = _Step(
        group=groups.by_size[decision.size_of(largest)],
        rows=_rows(largest),
        in_features=largest.in_features,
        out_features=largest.out_features,
        dtype=x.dtype,
        device=inputs[largest.weight].device,
    )
    return _measured(step, fitting[largest.node], reduce, groups.joint, config.timeout)


def _fitting(site: Projection, size: int, config: OProjConfig) -> list[int]:
    """The numbers of chunks that the site's rows can be exchanged in."""
    exchanges = {count: Exchange(size, "", capacity=config.capacity, chunks=count) for count in _CANDIDATES}
    return [count for count, one in exchanges.items() if unchunked_reason(site, Row(), one) is None]


def _rows(site: Projection) -> int:
    return prod(value_of(site.input).shape[:-1])


def _measured(step: _Step, counts: Sequence[int], reduce: Reduce, joint: ShardGroup, timeout: float) -> int:
    x = torch.zeros(step.rows, step.in_features, dtype=step.dtype, device=step.device)
    weight = x.new_zeros(step.out_features, step.in_features // step.group.size)
    ways = {str(count): partial(_run, step, x, weight, count, reduce) for count in (1, *counts)}
    slowest = slowest_microseconds(ways, step.in_words(), joint, step.device, timeout)
    best = min(counts, key=lambda count: slowest[str(count)])
    chosen = best if slowest[str(best)] < _WORTHWHILE * slowest["1"] else 1
    logger.info(
        "chunks = auto: %d, for %s (%s, the slowest rank's median)",
        chosen, step.in_words(), ", ".join(f"{count}: {taken:.0f} us" for count, taken in slowest.items()),
    )  # fmt: skip
    return chosen


def _run(step: _Step, x: Tensor, weight: Tensor, count: int, reduce: Reduce) -> Tensor:
    """One step in ``count`` chunks, in the order that ``write_chunks`` gives their nodes."""
    size, group = step.group.size, step.group.device
    sent = []
    for part in x.chunk(count):
        packed = part.view(len(part), size, -1).transpose(0, 1).contiguous()
        rows = torch.empty_like(packed)
        sent.append((dist.all_to_all_single(rows, packed, group=group, async_op=True), rows))
    returned = []
    for work, rows in sent:
        work.wait()
        sums = F.linear(rows.flatten(0, 1), weight)
        if reduce == "scatter":
            mine = sums.new_empty(len(sums) // size, sums.shape[1])
            started = dist.reduce_scatter_single(mine, sums, group=group, async_op=True)
        else:
            mine = torch.empty_like(sums)
            started = dist.all_to_all_single(mine, sums, group=group, async_op=True)
        returned.append((started, mine, sums))
    results = []
    for work, mine, _ in returned:
        work.wait()
        results.append(mine if reduce == "scatter" else mine.view(size, -1, mine.shape[1]).sum(0))
    return torch.cat(results)
