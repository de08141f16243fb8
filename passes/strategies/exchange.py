"""Who exchanges for a site, and how: what every strategy is told, and nothing about any of them."""

from dataclasses import dataclass
from typing import Literal

import torch

from oproj_pass.passes.gemm.axes import Axis

LEAST_CHUNK_NBYTES = 2**19
"""Below, starting a collective costs more than its bytes: on gloo 0.2 ms, as long as half a MiB takes."""

Reduce = Literal["scatter", "exchange"]


@dataclass(frozen=True)
class Peers:
    """Ranks that exchange with each other: ``size`` of them, in the process group of that c10d name."""

    size: int
    group_name: str


@dataclass(frozen=True)
class Exchange:
    """Who exchanges, and how.

    ``size``: ranks of the group, N. ``group_name``: the c10d name of its process group. ``reduce_dtype``: the
    type partial sums travel in, the product's own if None. ``control_group_name``: if set, ranks compare
    their row counts over that group before each exchange and raise instead of hanging. ``capacity``: if set,
    every exchange carries that many rows, zeros after the step's own. ``reduce``: partial sums are added by a
    reduce_scatter, or exchanged and added here, in rank order. ``mesh``: where an axis is not cut over all
    ranks, over whom; the group's ranks fill it in order, its last dimension first. ``chunks``: in how many
    parts a step's rows are exchanged, if a part sends at least ``least_chunk_nbytes``.
    """

    size: int
    group_name: str
    reduce_dtype: torch.dtype | None = None
    control_group_name: str | None = None
    capacity: int | None = None
    reduce: Reduce = "scatter"
    mesh: tuple[tuple[Axis, Peers], ...] = ()
    chunks: int = 1
    least_chunk_nbytes: int = LEAST_CHUNK_NBYTES

    @property
    def peers(self) -> Peers:
        """All ranks of the group."""
        return Peers(self.size, self.group_name)

    def over(self, axis: Axis) -> Peers:
        """The ranks along which an axis is cut."""
        return dict(self.mesh).get(axis, self.peers)

    def place(self, axis: Axis, rank: int) -> int:
        """Where rank ``rank`` of the group stands along an axis: which part of it is its own."""
        place = rank
        for other, peers in reversed(self.mesh):
            if other is axis:
                return place % peers.size
            place //= peers.size
        return rank
