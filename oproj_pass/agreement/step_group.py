"""One all-gather of small rows over a CPU process group, which knows by name who did not bring one.

Every rank sends its row to each peer and receives one from each. A library all-gather passes rows along a
ring, so that its error names no rank and a rank may fail because its neighbour did; here a missing row is its
own rank's. Fewer hops also make it the faster of the two for such small rows.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import torch
from torch.distributed import ProcessGroup, Work

from oproj_pass.groups import ShardGroup, shard_group

_TAG = 0x0970  # apart from other point-to-point traffic of the group
_SHORTEST_WAIT = 0.001
_CLOCK_SLACK = 0.01


@dataclass
class Replies:
    """What an exchange brought: each rank's row (the own one too), or why there is none.

    ``closed``: the connections were given up for a rank that did not come, so there is nobody left to tell.
    """

    rows: dict[int, bytes | bytearray] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    closed: bool = False


class StepGroup(Protocol):
    """The ranks that agree on steps. Implement it to agree over something else than a gloo group.

    Its objects must allow weak references, as those of ordinary classes do.
    """

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks, in group order; messages name these."""

    @property
    def rank(self) -> int:
        """This process's place in ``ranks``."""

    def exchange(self, row: bytearray, timeout: float) -> Replies:
        """Send ``row`` to every peer and wait at most ``timeout`` seconds for each peer's; never raises."""

    def limit_collectives(self, timeout: float) -> None:
        """Let collectives of the captured graphs wait at most ``timeout`` seconds for a peer."""


class ControlGroup:
    """Agrees over the CPU side of a ``ShardGroup``. A ``fake`` group, alone, agrees with copies of itself."""

    def __init__(self, group: ShardGroup) -> None:
        self.group = group
        self.ranks, self.rank = group.ranks, group.rank
        self._peers = [place for place in range(group.size) if place != group.rank]

    def exchange(self, row: bytearray, timeout: float) -> Replies:
        """Send ``row`` to every peer and receive theirs; a rank without one is in ``lost``."""
        if not self.group.has_peers:
            return Replies(dict.fromkeys(range(len(self.ranks)), row))
        deadline = time.monotonic() + timeout
        replies = Replies({self.rank: row})
        received = {peer: bytearray(len(row)) for peer in self._peers}
        arriving = {peer: self._start(replies, self._receive, received[peer], peer) for peer in self._peers}
        leaving = {peer: self._start(replies, self._send, row, peer) for peer in self._peers}
        for peer in self._peers:
            self._finish(replies, peer, (arriving[peer], leaving[peer]), deadline, timeout)
            if peer not in replies.lost:
                replies.rows[peer] = received[peer]
        return replies

    def limit_collectives(self, timeout: float) -> None:
        """Set the timeout of the group that the exchanges run on."""
        if self.group.has_peers:
            self.group.device.set_timeout(timedelta(seconds=timeout))

    def _receive(self, buffer: bytearray, peer: int) -> Work:
        return self.group.control.recv([torch.frombuffer(buffer, dtype=torch.uint8)], peer, _TAG)

    def _send(self, row: bytearray, peer: int) -> Work:
        return self.group.control.send([torch.frombuffer(row, dtype=torch.uint8)], peer, _TAG)

    @staticmethod
    def _start(
        replies: Replies, start: Callable[[bytearray, int], Work], buffer: bytearray, peer: int
    ) -> Work | None:
        try:
            return start(buffer, peer)
        except RuntimeError as error:
            replies.lost.setdefault(peer, _reason(error))
            return None

    @staticmethod
    def _finish(
        replies: Replies, peer: int, works: Iterable[Work | None], deadline: float, timeout: float
    ) -> None:
        try:
            for work in works:
                if work is not None:
                    work.wait(timedelta(seconds=max(_SHORTEST_WAIT, deadline - time.monotonic())))
        except RuntimeError as error:
            if time.monotonic() < deadline - _CLOCK_SLACK:
                replies.lost.setdefault(peer, _reason(error))
            else:
                replies.closed = True
                replies.lost.setdefault(peer, f"it did not come within {timeout:g} s")


def step_group(group: "ShardGroup | ProcessGroup | StepGroup", timeout: float) -> StepGroup:
    """The ranks to agree with; for a bare process group, a CPU group over its ranks is made beside it."""
    if isinstance(group, ProcessGroup):
        group = shard_group(group.size(), group, timeout)
    return ControlGroup(group) if isinstance(group, ShardGroup) else group


def carrier_of(group: StepGroup) -> object:
    """What the collectives of the group's steps run on: one object for all runners of a process group."""
    return group.group.device if isinstance(group, ControlGroup) else group


def has_peers(group: StepGroup) -> bool:
    """Whether other processes answer (see ``ShardGroup.has_peers``)."""
    return group.group.has_peers if isinstance(group, ControlGroup) else True


def _reason(error: RuntimeError) -> str:
    """Gloo's message without its source line, address and advice."""
    if "by peer" in str(error):  # closed, or reset: gloo has no type for it
        return "its connection closed: it died, or gave up on this rank"
    return f"its connection failed: {str(error).splitlines()[0].rpartition('] ')[2]}"
