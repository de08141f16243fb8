"""Lets the Ascend compilers run on CPU tensors, so that a sharded model can be debugged over gloo.

Both compilers rewrite ``all_to_all_single`` to an operator of their own, which has a kernel for the NPU only;
here it gets one for the CPU. Nothing of the NPU's path is changed.
"""

from collections.abc import Sequence
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _find_or_create_pg_by_ranks_and_tag


@cache
def register() -> None:
    """Register the kernel, once a process; either compiler must have been imported."""
    torch.library.impl("npu_define::all_to_all_single_npu", "cpu", _all_to_all_single)


def _all_to_all_single(
    rows: Tensor,
    send_counts: Sequence[int],
    _send_displacements: Sequence[int],
    receive_counts: Sequence[int],
    _receive_displacements: Sequence[int],
    tag: str,
    ranks: Sequence[int],
    group_size: int,
) -> Tensor:
    """Counts are elements, whatever the shape; the displacements follow from them."""
    group = _find_or_create_pg_by_ranks_and_tag(tag, list(ranks), group_size)
    sent = rows.reshape(-1)
    received = sent.new_empty(sum(receive_counts))
    dist.all_to_all_single(received, sent, list(receive_counts), list(send_counts), group=group)
    return received.view(-1, *rows.shape[1:])
