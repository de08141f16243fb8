"""What the ranks of a group agree on before a step: one token count and one graph mode.

Decides the agreement from what every rank brought. The collective that gathers it, and what a rank does with
the result, are the runtime's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from oproj_pass.errors import GroupMismatchError


class GraphMode(IntEnum):
    """How a step runs. Ordered: a group runs in the lowest mode that any of its ranks brings."""

    NONE = 0
    PIECEWISE = 1
    FULL = 2


@dataclass(frozen=True)
class StepAgreement:
    """What every rank of a group knows after agreeing; equal on all of them, whatever each one brought.

    Attributes:
        num_tokens: largest count any rank brought.
        mode: lowest mode any rank brought.
        world_size: ranks that took part.
        forced_by: the ranks (of the group) that brought `mode` where others brought a higher one; empty if
            all brought the same.
    """

    num_tokens: int
    mode: GraphMode
    world_size: int
    forced_by: tuple[int, ...]


def encode_step(num_tokens: int, mode: GraphMode) -> list[int]:
    """This rank's row for the collective, two integers."""
    return [num_tokens, int(mode)]


def agree_step(rows: Sequence[Sequence[int]]) -> StepAgreement:
    """The agreement over the rows of all ranks, in rank order, as `encode_step` made them.

    Depends on nothing but `rows`, so ranks that see equal rows reach equal results, or all raise.

    Raises:
        GroupMismatchError: no row, or one that is not a token count and a mode; names the rank.
    """
    if not rows:
        raise GroupMismatchError("no rank brought a step to agree on: the collective returned no rows")
    steps = [_decode_step(rank, row) for rank, row in enumerate(rows)]
    modes = [mode for _, mode in steps]
    lowest = min(modes)
    forced = max(modes) != lowest
    return StepAgreement(
        num_tokens=max(num_tokens for num_tokens, _ in steps),
        mode=lowest,
        world_size=len(steps),
        forced_by=tuple(rank for rank, mode in enumerate(modes) if forced and mode == lowest),
    )


def _decode_step(rank: int, row: Sequence[int]) -> tuple[int, GraphMode]:
    try:
        num_tokens, mode = row
        if num_tokens < 0:
            raise ValueError
        return num_tokens, GraphMode(mode)
    except ValueError:
        raise GroupMismatchError(
            f"rank {rank} brought {list(row)}, which is not [num_tokens, mode] with a mode of "
            f"{', '.join(f'{mode.value} ({mode.name})' for mode in GraphMode)}. "
            f"All ranks of the group must run the same version"
        ) from None
