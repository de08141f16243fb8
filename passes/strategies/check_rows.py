"""``oproj_pass::check_rows``: ranks compare their row counts before an exchange.

A debugging aid: one small CPU collective per projection. Unequal counts do not hang gloo, they abort one
process and hand the other plausible garbage, so they must be caught before the exchange.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from oproj_pass.errors import GroupMismatchError
from oproj_pass.passes.graph.process_groups import process_group


@torch.library.custom_op("oproj_pass::check_rows", mutates_args=())
def check_rows(x: Tensor, control_group_name: str, path: str) -> Tensor:
    """A copy of ``x`` [.., K], or ``GroupMismatchError`` on every rank if the ranks' row counts differ."""
    group = process_group(control_group_name)
    rows = torch.tensor([x.numel() // x.shape[-1]])
    counts = [torch.empty_like(rows) for _ in range(group.size())]
    dist.all_gather(counts, rows, group=group)
    by_rank = {rank: int(n) for rank, n in zip(dist.get_process_group_ranks(group), counts, strict=True)}
    if len(set(by_rank.values())) > 1:
        listed = ", ".join(f"rank {rank} brings {count}" for rank, count in by_rank.items())
        raise GroupMismatchError(
            f"{path}: unequal token counts before the exchange: {listed}. All ranks of a group must run the "
            "same number of rows each step: pad to a common captured size (see DecodeRunner)."
        )
    return x.clone()


@check_rows.register_fake
def _(x: Tensor, control_group_name: str, path: str) -> Tensor:
    return torch.empty_like(x)
