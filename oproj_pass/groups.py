"""Which ranks share a weight: consecutive ranks of the world, N at a time.

Each group is two process groups over the same ranks: one for the exchange on the device, and one on the CPU
for agreeing about it, so that a disagreement never meets a half-done exchange.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from threading import Lock
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed import ProcessGroup, distributed_c10d

from oproj_pass.automatic_sizes import AUTO_SIZES
from oproj_pass.errors import ConfigError, GroupMismatchError
from oproj_pass.passes.gemm.axes import Axis
from oproj_pass.passes.sites.options import size_option

logger = logging.getLogger(__name__)


class GridSide(NamedTuple):
    """Ranks along one dimension ``dim`` of a group that is laid out in a grid of ``shape`` (a, b)."""

    shape: tuple[int, int]
    dim: int


@dataclass(frozen=True)
class ShardGroup:
    """The ranks that share each weight, as seen from one of them. Equal for equal ranks and places.

    ``ranks``: global ranks in slice order; ``rank``: this process's place among them. ``is_given``: the
    caller made ``device``, and it is not the world. ``timeout``: seconds that forming the group, and
    ``control``, wait for a rank. ``side``: what part of a larger group it is, if it is one, and ``within``
    that group.
    """

    device: ProcessGroup = field(compare=False)
    control: ProcessGroup = field(compare=False)
    ranks: tuple[int, ...]
    rank: int
    is_given: bool = field(default=False, compare=False)
    timeout: float = field(default=600.0, compare=False)
    side: "GridSide | None" = None
    within: "ShardGroup | None" = field(default=None, compare=False, repr=False)

    @property
    def size(self) -> int:
        """Number of ranks, N."""
        return len(self.ranks)

    @property
    def has_peers(self) -> bool:
        """Whether other processes answer: a ``fake`` group runs alone and has nobody to agree with."""
        return not _is_fake(self.device)

    @property
    def is_alive(self) -> bool:
        """Whether neither process group was destroyed."""
        known = distributed_c10d._world.pg_map
        return self.device in known and self.control in known


@dataclass(frozen=True)
class ShardGroups:
    """This rank's groups of several sizes, as one graph uses them.

    ``by_size``: the group of each size that exchanges rows. ``grids``: of each shape (a, b), the groups along
    which inputs and outputs are cut. ``joint``: the ranks that agree on the graph and
    its calls, since one that is late in any of those groups holds up all others of them: the fewest
    consecutive ranks that are whole groups of every size.
    """

    by_size: Mapping[int, ShardGroup]
    joint: ShardGroup
    grids: Mapping[tuple[int, int], tuple[ShardGroup, ShardGroup]] = field(default_factory=dict)

    @property
    def all(self) -> list[ShardGroup]:
        """Each group once, the joint one last."""
        used = [*self.by_size.values(), *(group for pair in self.grids.values() for group in pair)]
        return [*(group for group in used if group is not self.joint), self.joint]

    def along(self, axis: Axis, size: int, mesh: Mapping[Axis, int]) -> ShardGroup:
        """The ranks, of a group of ``size``, over which an axis is cut; ``mesh``: the sides of its grid."""
        if not mesh:
            return self.by_size[size]
        return self.grids[mesh[Axis.K], mesh[Axis.H]][0 if axis is Axis.K else 1]

    @classmethod
    def of(
        cls,
        used: Iterable[int],
        agreeing: Iterable[int],
        group: ProcessGroup | None,
        timeout: float,
        grids: Iterable[tuple[int, int]] = (),
    ) -> "ShardGroups":
        """The groups of the ``used`` sizes, and the ranks that agree where there are groups of ``agreeing``.

        ``grids``: the shapes in which groups are laid out. Formed by size, in one order on all ranks.
        """
        by_size = {size: shard_group(size, group, timeout) for size in sorted(set(used))}
        joint = joint_group(agreeing, group, timeout)
        assert joint is not None
        meshes = {
            shape: grid_groups(by_size[shape[0] * shape[1]], shape, group, timeout) for shape in sorted(grids)
        }
        return cls(by_size, joint, meshes)


# One pair of process groups per world and size, as every compiled graph asks for it again. The lock: two
# threads that compile at once would each form a pair, and peers might pair them crosswise.
_Formed = dict[tuple[tuple[int, ...], GridSide | None], ShardGroup]
_GROUPS: "WeakKeyDictionary[ProcessGroup, _Formed]" = WeakKeyDictionary()
_FORMING = Lock()


def world_size(group: ProcessGroup | None) -> int:
    """Ranks that can share a projection: those of ``group``, else of the world; 1 without a process group."""
    if group is not None:
        return group.size()
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def automatic_size(world: int, in_features: Sequence[int]) -> int:
    """The largest of 8, 4, 2 that divides the world and every K; 1 if none does."""
    return next((n for n in AUTO_SIZES if world % n == 0 and all(k % n == 0 for k in in_features)), 1)


def require_fitting_size(size: int, group: ProcessGroup | None, role: str = "oproj") -> None:
    """Raise ``ConfigError`` unless groups of ``size`` ranks exactly fill the world (or are ``group``).

    ``role``: whose size it is.
    """
    setting = f"{size_option(role)} = {size}"
    if group is None and not (dist.is_available() and dist.is_initialized()):
        raise ConfigError(
            f"{setting} needs a process group of {size} ranks or a multiple, and torch.distributed is not "
            "initialised: call torch.distributed.init_process_group first (torchrun sets its variables), or "
            "leave the size at 'auto'."
        )
    world = world_size(group)
    if group is not None and size != world:
        raise ConfigError(f"{setting}, but the given group has {world} ranks: they must be equal.")
    if world % size:
        fitting = [n for n in range(1, world + 1) if world % n == 0]
        raise ConfigError(
            f"{setting} does not divide the world of {world} ranks. "
            f"Sizes that do: {', '.join(map(str, fitting))}."
        )


def shard_group(size: int, group: ProcessGroup | None, timeout: float) -> ShardGroup:
    """This rank's group of ``size``; made on first use, by its members only, and then kept.

    ``timeout``: seconds that a collective on the control group waits for a missing rank.
    """
    require_fitting_size(size, group)
    parent = group if group is not None else dist.group.WORLD
    assert parent is not None
    members = dist.get_process_group_ranks(parent)
    start = members.index(dist.get_rank()) // size * size
    return _formed(tuple(members[start : start + size]), group, timeout)


def grid_groups(
    whole: ShardGroup, shape: tuple[int, int], group: ProcessGroup | None, timeout: float
) -> tuple[ShardGroup, ShardGroup]:
    """This rank's groups along both dimensions (a, b) of ``whole``, whose ranks fill the grid row by row."""
    row, column = divmod(whole.rank, shape[1])
    sides = whole.ranks[column :: shape[1]], whole.ranks[row * shape[1] : (row + 1) * shape[1]]
    along_k, along_h = (
        replace(_formed(ranks, group, timeout, GridSide(shape, dim)), within=whole)
        for dim, ranks in enumerate(sides)
    )
    return along_k, along_h


def _formed(
    ranks: tuple[int, ...], group: ProcessGroup | None, timeout: float, side: GridSide | None = None
) -> ShardGroup:
    """The group of these ranks of ``group``, or the world; made on first use, and then kept."""
    parent = group if group is not None else dist.group.WORLD
    assert parent is not None
    with _FORMING:
        known = _GROUPS.setdefault(parent, {})
        if (ranks, side) not in known or not known[ranks, side].is_alive:
            made = _make(ranks, None if side else group, timeout)
            known[ranks, side] = replace(made, side=side, is_given=group not in (None, dist.group.WORLD))
            logger.info("group of %d: ranks %s", len(ranks), list(ranks))
        return known[ranks, side]


def joint_group(sizes: Iterable[int], group: ProcessGroup | None, timeout: float) -> ShardGroup | None:
    """The fewest consecutive ranks that are whole groups of each of these sizes; None if there are none."""
    size = math.lcm(*sizes)
    return shard_group(size, group, timeout) if size > 1 and world_size(group) % size == 0 else None


def _make(ranks: tuple[int, ...], group: ProcessGroup | None, timeout: float) -> ShardGroup:
    backend = "fake" if _is_fake(group) else "gloo"
    rank = dist.get_rank()
    try:
        control = dist.new_group(
            ranks, backend=backend, timeout=timedelta(seconds=timeout), use_local_synchronization=True
        )
        device = group if group is not None else dist.new_group(ranks, use_local_synchronization=True)
    except RuntimeError as error:
        raise GroupMismatchError(
            f"rank {rank} could not form the group of ranks {list(ranks)} within {timeout:g} s: "
            f"{str(error).splitlines()[0]}. A peer died, or did not compile the model with the same sizes."
        ) from error
    return ShardGroup(device, control, ranks, ranks.index(rank), timeout=timeout)


def _is_fake(group: ProcessGroup | None) -> bool:
    """Whether the group's backend is ``fake`` on every device (``"cpu:fake,npu:fake"`` names each)."""
    return all(entry.rpartition(":")[2] == "fake" for entry in str(dist.get_backend(group)).split(","))
