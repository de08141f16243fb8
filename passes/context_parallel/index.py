"""``oproj_pass::context_rows`` and ``context_order``: the chunk rule of context parallelism, as indices.

A sequence of T rows over P ranks: chunks r and 2P - 1 - r of 2P to rank r, and every rank with as many rows
as the one that holds most (``capture.chunks``). Rows that pad a rank are copies of the first row.

Both are written in closed form, of operators that every compiler lowers: tracing replaces them by these, so
that a device computes its indices itself, also under a symbolic T and inside a captured graph.
"""

from typing import cast

import torch
from torch import Tensor

from oproj_pass.capture.chunks import largest_share
from oproj_pass.passes.context_parallel.rows import Size


def local_rows(num_rows: Size, pcp_size: int) -> Size:
    """Rows of every rank, padding included; symbolic for a symbolic number, in terms that compilers lower.

    The rank that holds most has two full chunks, but for 2P + 1 rows, in chunks of two: one row less.
    That is so above P rows; a symbolic number up to P may give two rows a rank where one would do.
    """
    if isinstance(num_rows, int):
        return largest_share([num_rows], pcp_size)
    is_one_short = (2 * pcp_size + 1) // num_rows - 2 * pcp_size // num_rows
    return 2 * _chunk(num_rows, pcp_size) - is_one_short  # type: ignore[no-any-return]


def _chunk(num_rows: Size, pcp_size: int) -> Size:
    return (num_rows + 2 * pcp_size - 1) // (2 * pcp_size)


def _sizes(num_rows: int, pcp_size: int) -> tuple[int, int]:
    """Rows of a chunk and of a rank: symbolic in a trace, as ``num_rows`` is."""
    return cast(int, _chunk(num_rows, pcp_size)), cast(int, local_rows(num_rows, pcp_size))


def _context_rows(like: Tensor, num_rows: int, pcp_size: int, rank: int) -> Tensor:
    """The rows [L] of the sequence that a rank holds, on the device of ``like``; padding is row 0."""
    chunk, share = _sizes(num_rows, pcp_size)
    place = torch.arange(share, device=like.device)
    behind_early = place + rank * chunk
    behind_late = place + (2 * pcp_size - 2 - rank) * chunk
    rows = torch.where(place < chunk, behind_early, behind_late)
    return torch.where(rows < num_rows, rows, 0)


def _context_order(like: Tensor, num_rows: int, pcp_size: int) -> Tensor:
    """Where each of the sequence's rows [T] is among all ranks' rows, gathered in rank order."""
    chunk, share = _sizes(num_rows, pcp_size)
    rows = torch.arange(num_rows, device=like.device)
    place = torch.div(rows, chunk, rounding_mode="floor")
    is_late = place >= pcp_size
    rank = torch.where(is_late, 2 * pcp_size - 1 - place, place)
    return rank * share + rows - place * chunk + torch.where(is_late, chunk, 0)


_DEFINITIONS = {
    "context_rows(Tensor like, SymInt num_rows, int pcp_size, int rank) -> Tensor": _context_rows,
    "context_order(Tensor like, SymInt num_rows, int pcp_size) -> Tensor": _context_order,
}
_library = torch.library.Library("oproj_pass", "FRAGMENT")  # type: ignore[no-untyped-call]
for _schema, _implementation in _DEFINITIONS.items():
    _name = _schema.partition("(")[0]
    _library.define(_schema)  # type: ignore[no-untyped-call]
    _library.impl(_name, _implementation, "CompositeImplicitAutograd")  # type: ignore[no-untyped-call]
