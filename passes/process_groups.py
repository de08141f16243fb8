"""Finds the ranks behind a graph node: its process group by its c10d name, or its HCCL communicator."""

from typing import Any

import torch
from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import GroupName
from torch.fx import Node


def process_group(name: str) -> ProcessGroup:
    """The process group of that name; ``RuntimeError`` if this process has none."""
    return _resolve_process_group(GroupName(name))


def communicator(node: Node) -> str | None:
    """The HCCL communicator of a fused communication operator (``hcom``), None for any other node."""
    found = _named_argument(node, "hcom")
    return None if found is None else str(found)


def communicator_size(node: Node) -> int:
    """The number of ranks of a fused communication operator."""
    return int(_named_argument(node, "world_size"))


def listed_ranks(node: Node) -> list[int] | None:
    """The ranks that a collective of Ascend's compilers names instead of a group, None for other nodes."""
    found = (_named_argument(node, name) for name in ("ranks", "rank_list"))
    return next((list(ranks) for ranks in found if ranks is not None), None)


def _named_argument(node: Node, name: str) -> Any:
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    names = [argument.name for argument in node.target._schema.arguments]
    if name not in names:
        return None
    index = names.index(name)
    return node.args[index] if index < len(node.args) else node.kwargs.get(name)
