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


def agree_step(steps: Sequence[tuple[int, GraphMode]]) -> StepAgreement:
    """The agreement over the token count and mode of all ranks, in rank order.

    Depends on nothing but `steps`, so ranks that see equal steps reach equal results, or all raise.

    Raises:
        GroupMismatchError: no step.
    """
    if not steps:
        raise GroupMismatchError("no rank brought a step to agree on: the collective returned no rows")
    counts, modes = zip(*steps, strict=True)
    lowest = min(modes)
    lower = [rank for rank, mode in enumerate(modes) if mode == lowest] if max(modes) != lowest else ()
    return StepAgreement(max(counts), lowest, len(steps), forced_by=tuple(lower))
