"""The configuration of a custom pass, in literals that its code is written with."""

from dataclasses import dataclass

import torch

from oproj_pass.passes.strategies.exchange import Exchange, Reduce


@dataclass(frozen=True)
class Settings:
    """A pass's configuration; ``version`` tells the compile caches of two releases apart.

    ``strategy``: None for the default of each kind of projection.
    """

    version: str
    group_name: str
    ranks: tuple[int, ...]
    rank: int
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    attention_ops: tuple[str, ...]
    expected_sites: int | None
    reduce_dtype: str | None
    strategy: str | None = None
    reduce: Reduce = "scatter"

    @property
    def exchange(self) -> Exchange:
        """Who exchanges, and in which type."""
        dtype = None if self.reduce_dtype is None else getattr(torch, self.reduce_dtype)
        return Exchange(len(self.ranks), self.group_name, dtype, reduce=self.reduce)
