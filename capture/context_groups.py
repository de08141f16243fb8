"""Which ranks form a group, and how rows of unequal ranks are padded for an exchange among experts."""

from collections.abc import Sequence
from dataclasses import dataclass

from oproj_pass.capture.checks import require_int
from oproj_pass.errors import ConfigError


def consecutive_groups(world_size: int, size: int) -> tuple[tuple[int, ...], ...]:
    """Groups of neighbours: (0, 1), (2, 3), ... for two of a size.

    Raises:
        ConfigError: `size` is below 1 or does not divide the world.
    """
    _require_fitting(world_size, size)
    return tuple(tuple(range(start, start + size)) for start in range(0, world_size, size))


def strided_groups(world_size: int, size: int) -> tuple[tuple[int, ...], ...]:
    """Groups across the consecutive ones: (0, 2), (1, 3) for two of a size in a world of four.

    With tensor parallelism over consecutive ranks these share a prompt (context parallelism).

    Raises:
        ConfigError: `size` is below 1 or does not divide the world.
    """
    _require_fitting(world_size, size)
    stride = world_size // size
    return tuple(tuple(range(start, world_size, stride)) for start in range(stride))


def _require_fitting(world_size: int, size: int) -> None:
    require_int("world_size", world_size, minimum=1)
    if world_size % require_int("size", size, minimum=1):
        raise ConfigError(f"size={size} must divide world_size={world_size}")


@dataclass(frozen=True)
class ExpertPadding:
    """Rows of each rank of an expert-parallel group, padded to equally many for its collectives.

    Ranks of one prefill hold equally many rows; replicas with other prompts do not.

    Raises:
        ConfigError: no rank, or a negative number of rows.
    """

    rows_by_rank: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.rows_by_rank:
            raise ConfigError("rows_by_rank is empty: an expert-parallel group has at least one rank")
        for rows in self.rows_by_rank:
            require_int("rows_by_rank", rows, minimum=0)

    @property
    def rows(self) -> int:
        """Rows that every rank brings."""
        return max(self.rows_by_rank)

    def padding(self, rank: int) -> int:
        """Rows that `rank` adds to its own, behind them."""
        return self.rows - self.rows_by_rank[rank]

    def kept(self) -> tuple[int, ...]:
        """The rows that are no padding, among those of all ranks gathered in rank order."""
        return tuple(
            rank * self.rows + row for rank, held in enumerate(self.rows_by_rank) for row in range(held)
        )

    def pad(self, rows: Sequence[object], rank: int, pad: object) -> list[object]:
        """The rows of `rank`, padded."""
        if len(rows) != self.rows_by_rank[rank]:
            raise ConfigError(
                f"rank {rank} brings {len(rows)} rows, {self.rows_by_rank[rank]} were agreed on"
            )
        return [*rows, *[pad] * self.padding(rank)]
