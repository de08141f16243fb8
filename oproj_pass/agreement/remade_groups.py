"""Follows a group whose process groups were destroyed, and perhaps made again, under a compiled graph.

The ranks that share a projection, and the slices they hold, outlive the process groups. Decides whether a
graph that was compiled for the old ones may call the new ones, and says what to do where it may not.
"""

import math

import torch.distributed as dist
from torch._C._distributed_c10d import _register_process_group
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import GroupName

from oproj_pass.errors import GroupMismatchError
from oproj_pass.groups import ShardGroup, grid_groups, shard_group
from oproj_pass.passes.graph.process_groups import process_group


class FollowedGroup:
    """A group that a compiled graph uses, or the one that has taken its place; ``path`` is for messages."""

    def __init__(self, group: ShardGroup, path: str) -> None:
        self._compiled_for = self.group = group
        self._path = path

    def follow(self) -> None:
        """Go on with a group that was made again; see ``living`` and ``keep_names`` for what they raise."""
        if not self.group.is_alive:
            remade = living(self.group, self._path)
            keep_names(self._compiled_for, remade, self._path)
            self.group = remade


def living(group: ShardGroup, path: str) -> ShardGroup:
    """``group``, or the one over the same ranks that takes its place once its process groups are destroyed.

    ``path``: the layer that needs it, for messages. Forms the new group, so every rank must come here. Raises
    ``GroupMismatchError`` where there is no world to form it in, or this rank's place in it is another.
    """
    if group.is_alive:
        return group
    lost = f"{path}: the process group of ranks {list(group.ranks)}, over which it is sharded, was destroyed"
    if group.is_given:
        raise GroupMismatchError(
            f"{lost}, and it was given by the option `group`. Make it again on every rank, call "
            "torch._dynamo.reset(), and compile with the new group."
        )
    if not dist.is_initialized():
        raise GroupMismatchError(
            f"{lost}. Call init_process_group again with the same ranks on every one of them, and the model "
            "serves again; or gather its weights with full_state_dict before destroying the group."
        )
    remade = _again(group)
    if remade != group:
        raise GroupMismatchError(
            f"{lost}, and in the new world this process is rank {dist.get_rank()} in a group of ranks "
            f"{list(remade.ranks)}; it holds slice {group.rank + 1} of {group.size}. Give every process the "
            "rank it had, or load the weights again."
        )
    return remade


def _again(group: ShardGroup) -> ShardGroup:
    if group.side is None:
        return shard_group(group.size, None, group.timeout)
    whole = shard_group(math.prod(group.side.shape), None, group.timeout)
    return grid_groups(whole, group.side.shape, None, group.timeout)[group.side.dim]


def keep_names(old: ShardGroup, new: ShardGroup, path: str) -> None:
    """Let graphs that call ``old``'s process groups by name find ``new``'s.

    Raises ``GroupMismatchError`` where they cannot: another group has taken a name, or the graph holds HCCL
    communicators, which no name leads to.
    """
    compiled_in = "hccl" in str(dist.get_backend(new.device))
    if compiled_in or not all(
        _serves_as(process, name)
        for process, name in (
            (new.device, old.device.group_name),
            (new.control, old.control.group_name),
        )
    ):
        raise GroupMismatchError(
            f"{path}: the process group of ranks {list(old.ranks)} was made again, and its compiled graph "
            f"holds {'an HCCL communicator' if compiled_in else 'a name that now means another group'}. "
            "Call torch._dynamo.reset() on every rank, so that it is compiled with the new group."
        )


def _serves_as(group: ProcessGroup, name: str) -> bool:
    try:
        return process_group(name) is group
    except RuntimeError:  # the name went with the group that had it
        _register_process_group(GroupName(name), group)
        return True
