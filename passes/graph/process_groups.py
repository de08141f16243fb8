"""Finds the process group behind its c10d name, as graphs keep it."""

from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import GroupName


def process_group(name: str) -> ProcessGroup:
    """The process group of that name; ``RuntimeError`` if this process has none."""
    return _resolve_process_group(GroupName(name))
