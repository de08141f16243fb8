"""Gathers a sharded model's full state dict back; loading needs nothing of its own.

``model.load_state_dict(full)`` works on a sharded model as it is: each rank takes its slice of the full
values (see ``Released``).
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from oproj_pass.agreement.remade_groups import living
from oproj_pass.errors import GroupMismatchError
from oproj_pass.groups import ShardGroup
from oproj_pass.weights.memory_report import unwrap
from oproj_pass.weights.released import Released
from oproj_pass.weights.shard import Shard


def full_state_dict(model: nn.Module) -> dict[str, Any]:
    """``model.state_dict()`` with every released weight gathered whole, on its own device.

    A collective: every rank of each group must call it. Weights that share storage share it here too. Raises
    ``GroupMismatchError`` when a rank of the group does not take part within the group's timeout.
    """
    values = unwrap(model).state_dict(keep_vars=True)
    gathered: dict[Shard, Tensor] = {}
    for value in values.values():
        if isinstance(value, Released) and value.shard not in gathered:
            gathered[value.shard] = _gather(value.shard)
    return {name: _full(value, gathered) for name, value in values.items()}


def _full(value: Any, gathered: dict[Shard, Tensor]) -> Any:
    if isinstance(value, Released):
        return gathered[value.shard]
    return value.detach() if isinstance(value, Tensor) else value


def _gather(shard: Shard) -> Tensor:
    full = torch.empty_strided(
        shard.signature.shape,
        shard.signature.stride,
        dtype=shard.signature.dtype,
        device=shard.signature.device,
    )
    gathered = partial(_gathered, path=shard.path)
    as_bytes(full).copy_(shard.placement.whole(gathered, as_bytes(shard.tensor), full.shape))
    return full


def _gathered(part: Tensor, group: ShardGroup, path: str) -> list[Tensor]:
    """The parts of every rank of a group."""
    group, mine = living(group, path), part.contiguous()
    pieces = [torch.empty_like(mine) for _ in group.ranks]
    try:
        dist.all_gather(pieces, mine, group=group.device)
    except RuntimeError as error:
        raise GroupMismatchError(
            f"{path}: could not gather the full weight from ranks {list(group.ranks)}: "
            f"{str(error).splitlines()[0]}. full_state_dict must be called on every rank of the group."
        ) from error
    return pieces


def as_bytes(tensor: Tensor) -> Tensor:
    """A tensor of one-byte elements as uint8, since gloo takes no float8; any other as it is."""
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor
