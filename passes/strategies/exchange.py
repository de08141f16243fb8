"""Who exchanges for a site, and how: what every strategy is told, and nothing about any of them."""

from dataclasses import dataclass

import torch


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
    every exchange carries that many rows, zeros after the step's own.
    """

    size: int
    group_name: str
    reduce_dtype: torch.dtype | None = None
    control_group_name: str | None = None
    capacity: int | None = None

    @property
    def peers(self) -> Peers:
        """All ranks of the group."""
        return Peers(self.size, self.group_name)
