"""Which part of a full tensor a rank holds: how it is split over each dimension of a mesh of groups.

A plain split is DTensor's ``Shard(dim)``; of padding and of parts in several pieces DTensor knows nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from oproj_pass.groups import ShardGroup
from oproj_pass.passes.gemm.split import Split

Gather = Callable[[Tensor, ShardGroup], Sequence[Tensor]]


@dataclass(frozen=True)
class Placement:
    """``splits[i]`` splits a tensor over the ranks of ``mesh[i]``, a dimension of the mesh."""

    splits: tuple[Split, ...]
    mesh: tuple[ShardGroup, ...]

    @classmethod
    def split(cls, how: Split | int, group: ShardGroup) -> "Placement":
        """Split over the ranks of one group; a number is a dimension that falls into equal parts."""
        return cls((how if isinstance(how, Split) else Split(how),), (group,))

    @classmethod
    def over(cls, along: Iterable[tuple[Split, ShardGroup]]) -> "Placement":
        """Split over the ranks of one group after the other."""
        splits, mesh = zip(*along, strict=True)
        return cls(splits, mesh)

    @property
    def dim(self) -> int:
        """The dimension that is split, of a placement on one group."""
        return self.only_split.dim

    @property
    def only_split(self) -> Split:
        """The split of a placement on one group."""
        (split,) = self.splits
        return split

    @property
    def group(self) -> ShardGroup:
        """The ranks that hold the parts, of a placement on one group."""
        (group,) = self.mesh
        return group

    @property
    def holders(self) -> ShardGroup:
        """All ranks that hold a part: of a grid, the group whose sides are the mesh."""
        if len(self.mesh) == 1:
            return self.group
        whole = self.mesh[0].within
        assert whole is not None
        return whole

    def part_of(self, full: Tensor) -> Tensor:
        """This rank's part of a full tensor, a view where it is one piece without padding."""
        for split, group in zip(self.splits, self.mesh, strict=True):
            full = split.part_of(full, group.rank, group.size)
        return full

    def whole(self, gathered: Gather, part: Tensor, shape: Sequence[int]) -> Tensor:
        """The full tensor of ``shape``; ``gathered`` brings the parts of a group's ranks, in order."""
        for split, group in reversed([*zip(self.splits, self.mesh, strict=True)]):
            part = split.whole(gathered(part, group), shape[split.dim])
        return part

    def write_part(self, part: Tensor, full: Tensor, holder: int) -> None:
        """Copy the part that the rank at place ``holder`` of ``holders`` holds to where it belongs."""
        pairs = [(part, full)]
        for split, group in zip(self.splits, self.mesh, strict=True):
            place = _place_in(group, holder) if len(self.mesh) > 1 else holder
            pairs = [both for pair in pairs for both in split.stretches(*pair, place, group.size)]
        for piece, place_of_piece in pairs:
            place_of_piece.copy_(piece)

    def describe(self) -> str:
        """The placement for messages."""
        return " and ".join(
            f"along dimension {split.dim}{_manner(split)} over ranks {list(group.ranks)}"
            for split, group in zip(self.splits, self.mesh, strict=True)
        )


def _manner(split: Split) -> str:
    pieces = f" in {split.segments} pieces each" if split.segments > 1 else ""
    return pieces + (" with padding" if split.padded_by is not None else "")


def _place_in(side: ShardGroup, holder: int) -> int:
    """The place along a side of a grid of the rank that is at place ``holder`` of the whole."""
    assert side.side is not None
    return divmod(holder, side.side.shape[1])[side.side.dim]
