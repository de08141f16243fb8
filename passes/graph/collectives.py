"""The table of collectives: which operators communicate, with whom, and how much. One row each.

Read by everything that has to know one: fingerprints, diffs, streams, fused operators. Torch's own functional
collectives start asynchronously; ``wait_tensor`` only ends one and is none itself.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.fx import Node

from oproj_pass.passes.graph.arguments import named_argument

# Everything in these namespaces communicates, listed below or not, but for what ends a collective.
NAMESPACES = ("_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "npu_define")
_ENDS = ("wait_tensor",)

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
"""Types that gloo and several device backends cannot send: they may travel as bytes, and are never summed."""


@dataclass(frozen=True)
class Collective:
    """One operator that communicates.

    ``name``: without its namespace. ``is_sized_by_output``: whether its size is that of its result (a
    gather), not of its input. ``is_fused``: computes as well, so that its input says nothing of its size;
    such an operator names a communicator (``hcom``) instead of a process group.
    """

    name: str
    is_sized_by_output: bool = False
    is_fused: bool = False


COLLECTIVES = {
    "npu::npu_mm_reduce_scatter_base": Collective("npu_mm_reduce_scatter_base", is_fused=True),
    "npu::npu_all_gather_base_mm": Collective("npu_all_gather_base_mm", is_fused=True),
    "npu::npu_mm_all_reduce_base": Collective("npu_mm_all_reduce_base", is_fused=True),
    "npu::npu_all_to_all_matmul": Collective("npu_all_to_all_matmul", is_fused=True),
}


def named_collective(qualified_name: str) -> Collective | None:
    """The collective of an operator by its name (``"_c10d_functional::all_to_all_single"``), else None."""
    namespace, _, name = qualified_name.partition("::")
    if qualified_name in COLLECTIVES:
        return COLLECTIVES[qualified_name]
    if namespace not in NAMESPACES or name in _ENDS:
        return None
    return Collective(name, is_sized_by_output=name.startswith("all_gather"))


def collective_of(node: Node) -> Collective | None:
    """The collective that a node starts, None for any other node."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    found = _collective_called(node.target)
    if found is None and communicator(node) is not None:
        return Collective(node.target._opname, is_fused=True)
    return found


@lru_cache(maxsize=1024)  # a graph calls few operators in thousands of nodes
def _collective_called(target: torch._ops.OpOverload) -> Collective | None:
    return named_collective(target.overloadpacket._qualified_op_name)


def is_collective(node: Node) -> bool:
    """Whether the node starts a collective."""
    return collective_of(node) is not None


def ends_collective(node: Node) -> bool:
    """Whether the node waits for a collective that another one started."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    namespace, _, name = node.target.overloadpacket._qualified_op_name.partition("::")
    return namespace in NAMESPACES and name in _ENDS


def communicator(node: Node) -> str | None:
    """The HCCL communicator of a fused communication operator (``hcom``), None for any other node."""
    found = named_argument(node, "hcom")
    return None if found is None else str(found)


def communicator_size(node: Node) -> int:
    """The number of ranks of a fused communication operator."""
    return int(named_argument(node, "world_size"))


def listed_ranks(node: Node) -> list[int] | None:
    """The ranks that a collective of Ascend's compilers names instead of a group, None for other nodes."""
    found = (named_argument(node, name) for name in ("ranks", "rank_list"))
    return next((list(ranks) for ranks in found if ranks is not None), None)
