"""``oproj_pass::context_rows`` and ``context_order``: the chunk rule of context parallelism, as indices.

A sequence of T rows over P ranks: chunks r and 2P - 1 - r of 2P to rank r, and every rank with as many rows
as the one that holds most (``capture.chunks``). Rows that pad a rank are copies of the first row.
"""

import torch
from torch import Tensor

from oproj_pass.capture.chunks import largest_share, rank_chunks


def local_rows(num_rows: int | torch.SymInt, pcp_size: int) -> int | torch.SymInt:
    """Rows of every rank, padding included; symbolic for a symbolic number.

    With chunks of c rows it is the share of rank P - 1, which holds the middle two: the first of them is full
    as soon as any rank has a second one.
    """
    chunk = (num_rows + 2 * pcp_size - 1) // (2 * pcp_size)
    second = torch.sym_max(0, num_rows - pcp_size * chunk)  # type: ignore[no-untyped-call]
    return chunk + torch.sym_min(chunk, second)  # type: ignore[no-any-return, no-untyped-call]


@torch.library.custom_op("oproj_pass::context_rows", mutates_args=())
def context_rows(like: Tensor, num_rows: int, pcp_size: int, rank: int) -> Tensor:
    """The rows [L] of the sequence that a rank holds, on the device of ``like``; padding is row 0."""
    held = [torch.arange(chunk.start, chunk.stop) for chunk in rank_chunks(num_rows, pcp_size, rank)]
    rows = torch.zeros(largest_share([num_rows], pcp_size), dtype=torch.int64)
    rows[: sum(map(len, held))] = torch.cat(held)
    return rows.to(like.device)


@context_rows.register_fake
def _(like: Tensor, num_rows: int, pcp_size: int, rank: int) -> Tensor:
    return like.new_empty(local_rows(num_rows, pcp_size), dtype=torch.int64)


@torch.library.custom_op("oproj_pass::context_order", mutates_args=())
def context_order(like: Tensor, num_rows: int, pcp_size: int) -> Tensor:
    """Where each of the sequence's rows [T] is among all ranks' rows, gathered in rank order."""
    order = torch.empty(num_rows, dtype=torch.int64)
    share = largest_share([num_rows], pcp_size)
    for rank in range(pcp_size):
        start = rank * share
        for chunk in rank_chunks(num_rows, pcp_size, rank):
            order[chunk.start : chunk.stop] = torch.arange(start, start + len(chunk))
            start += len(chunk)
    return order.to(like.device)


@context_order.register_fake
def _(like: Tensor, num_rows: int, pcp_size: int) -> Tensor:
    return like.new_empty(num_rows, dtype=torch.int64)
