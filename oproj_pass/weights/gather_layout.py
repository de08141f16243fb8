"""Where the parts of gathered weights lie in a buffer, and how they become the full weights.

Parts travel as bytes, since not every library sends every type.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Work

from oproj_pass.errors import ConfigError
from oproj_pass.groups import ShardGroup
from oproj_pass.weights.shard import Shard

_ALIGNMENT = 64  # bytes, the most that a type or a kernel asks of an address


@dataclass(frozen=True)
class Part:
    """One weight of an entry, from byte ``start`` of a buffer on; ``order``: its dimensions in memory."""

    shard: Shard
    start: int
    order: tuple[int, ...]

    @property
    def is_in_order(self) -> bool:
        """Whether the parts of all ranks, one after the other, are the full weight."""
        first, *others = self.shard.placement.splits
        return not others and first.segments == 1 and first.dim == self.order[0]

    @property
    def nbytes(self) -> int:
        """Bytes of every rank's part."""
        return self.shard.placement.holders.size * self.shard.tensor.nbytes

    def arrived_in(self, buffer: Tensor) -> Tensor:
        """The parts of all ranks, one after the other, as bytes."""
        return buffer.narrow(0, self.start, self.nbytes)

    def full_in(self, buffer: Tensor) -> Tensor:
        """The full weight."""
        return self._shown(buffer, self.start, self.shard.signature.shape)

    def part_in(self, buffer: Tensor, holder: int) -> Tensor:
        """The part of one rank, as it arrived."""
        tensor = self.shard.tensor
        return self._shown(buffer, self.start + holder * tensor.nbytes, tensor.shape)

    def own_bytes(self) -> Tensor:
        """This rank's part as bytes, without a copy."""
        return self.shard.tensor.detach().permute(self.order).view(-1).view(torch.uint8)

    def _shown(self, buffer: Tensor, start: int, shape: Sequence[int]) -> Tensor:
        stored = [shape[dim] for dim in self.order]
        nbytes = torch.Size(stored).numel() * self.shard.tensor.itemsize
        values = buffer.narrow(0, start, nbytes).view(self.shard.tensor.dtype).view(stored)
        return values.permute([self.order.index(dim) for dim in range(len(self.order))])


@dataclass(frozen=True)
class Entry:
    """Weights that are gathered together."""

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> "Entry":
        """The weights one after the other in a buffer."""
        parts: list[Part] = []
        end = 0
        for shard in shards:
            parts.append(Part(shard, end, _order_in_memory(shard)))
            end = -(-(end + parts[-1].nbytes) // _ALIGNMENT) * _ALIGNMENT
        return cls(tuple(parts))

    @property
    def nbytes(self) -> int:
        """Bytes that it takes of a buffer."""
        return self.parts[-1].start + self.parts[-1].nbytes

    @property
    def sent_nbytes(self) -> int:
        """Bytes of its parts that a rank sends: all of them to each of the others."""
        return sum(part.nbytes - part.shard.tensor.nbytes for part in self.parts)

    @property
    def names(self) -> str:
        """Its layers, for messages."""
        return ", ".join(dict.fromkeys(part.shard.path for part in self.parts))

    @property
    def is_in_order(self) -> bool:
        """Whether what arrives is what the model reads."""
        return all(part.is_in_order for part in self.parts)

    def start(self, buffer: Tensor) -> list[Work]:
        """Begin to gather every part into ``buffer``."""
        works = (
            start_gather(part.arrived_in(buffer), part.own_bytes(), part.shard.placement.holders)
            for part in self.parts
        )
        return [work for started in works for work in started]

    def full_in(self, buffer: Tensor) -> Mapping[Shard, Tensor]:
        """The full weights, where parts lie in order."""
        return {part.shard: part.full_in(buffer) for part in self.parts}

    def assembled(self, arrived: Tensor, whole: Tensor) -> Mapping[Shard, Tensor]:
        """The full weights in ``whole``, put together from the parts in ``arrived``."""
        full = self.full_in(whole)
        for part in self.parts:
            placement = part.shard.placement
            for holder in range(placement.holders.size):
                placement.write_part(part.part_in(arrived, holder), full[part.shard], holder)
        return full


def start_gather(parts: Tensor, mine: Tensor, group: ShardGroup) -> list[Work]:
    """Begin to bring every rank's bytes into ``parts``; on a device on the group's own stream.

    From each rank directly: gloo's own all-gather takes twice the time, and as much memory again.
    """
    by_rank = parts.chunk(group.size)
    by_rank[group.rank].copy_(mine)
    peers = [place for place in range(group.size) if place != group.rank]
    sent = [dist.P2POp(dist.isend, mine, group=group.device, group_peer=place) for place in peers]
    received = [
        dist.P2POp(dist.irecv, by_rank[place], group=group.device, group_peer=place) for place in peers
    ]
    return dist.batch_isend_irecv([*sent, *received])


def _order_in_memory(shard: Shard) -> tuple[int, ...]:
    order = shard.tensor.dim_order()
    if not shard.tensor.permute(order).is_contiguous():
        raise ConfigError(f"{shard.path}: its part has strides {shard.tensor.stride()}, with gaps in memory")
    return tuple(order)
