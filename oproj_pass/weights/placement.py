"""Which part of a full tensor a rank holds, in DTensor's terms: ``Shard(dim)`` on a mesh of groups."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.distributed.tensor.placement_types import Shard

from oproj_pass.groups import ShardGroup
from oproj_pass.passes.gemm.axes import part_of


@dataclass(frozen=True)
class Placement:
    """``shards[i]`` splits a tensor in equal parts over the ranks of ``mesh[i]``, a dimension of the mesh."""

    shards: tuple[Shard, ...]
    mesh: tuple[ShardGroup, ...]

    @classmethod
    def split(cls, dim: int, group: ShardGroup) -> "Placement":
        """Split along ``dim`` over the ranks of one group."""
        return cls((Shard(dim),), (group,))

    @property
    def dim(self) -> int:
        """The dimension that is split, of a placement on one group."""
        (shard,) = self.shards
        return shard.dim

    @property
    def group(self) -> ShardGroup:
        """The ranks that hold the parts, of a placement on one group."""
        (group,) = self.mesh
        return group

    def part_of(self, full: Tensor) -> Tensor:
        """This rank's part of a full tensor, as a view."""
        for shard, group in zip(self.shards, self.mesh, strict=True):
            full = part_of(full, shard.dim, group.rank, group.size)
        return full

    def full_shape(self, part: Sequence[int]) -> list[int]:
        """The shape of the full tensor of which a rank holds a part of shape ``part``."""
        shape = list(part)
        for shard, group in zip(self.shards, self.mesh, strict=True):
            shape[shard.dim] *= group.size
        return shape

    def describe(self) -> str:
        """The placement for messages."""
        return " and ".join(
            f"along dimension {shard.dim} over ranks {list(group.ranks)}"
            for shard, group in zip(self.shards, self.mesh, strict=True)
        )
