"""The record that the ranks of a group agree on before a step, and what is wrong with one.

Decides from what every rank brought and from nothing else, so all ranks decide alike. Collecting it is
`peers.py`'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from oproj_pass.agreement.wire import StepKind, StepRow
from oproj_pass.capture import StepAgreement, agree_step


@dataclass(frozen=True)
class AgreedStep:
    """What all ranks know after agreeing: equal on every one of them.

    Attributes:
        agreement: the largest token count and the lowest graph mode.
        rows: what each rank brought, in group order.
        ranks: their global ranks.
    """

    agreement: StepAgreement
    rows: tuple[StepRow, ...]
    ranks: tuple[int, ...]

    @classmethod
    def of(cls, rows: Sequence[StepRow], ranks: tuple[int, ...]) -> "AgreedStep":
        """The record over the rows of all ranks."""
        agreement = agree_step([(row.num_tokens, row.mode) for row in rows])
        return cls(agreement, tuple(rows), ranks)

    def __str__(self) -> str:
        """For the flight record."""
        return f"{self.agreement.num_tokens} tokens, {self.agreement.mode.name}"

    @property
    def tokens_by_rank(self) -> dict[int, int]:
        """The token count that each global rank brought."""
        return {rank: row.num_tokens for rank, row in zip(self.ranks, self.rows, strict=True)}


def disagreement(rows: Sequence[StepRow], ranks: Sequence[int]) -> str | None:
    """Why these rows are not one step of one runner, in words that name the ranks; None if they are."""
    steps = [(row.runner, row.kind, row.sequence) for row in rows]
    if steps.count(steps[0]) == len(steps) and rows[0].kind is not StepKind.FAILED:
        return None
    failed = [(rank, row) for rank, row in zip(ranks, rows, strict=True) if row.kind is StepKind.FAILED]
    if failed:
        return "; ".join(f"rank {rank} failed: {row.reason}" for rank, row in failed)
    doing = "; ".join(
        f"rank {rank} is at agreement {row.sequence} of {row.runner!r} ({row.kind.name})"
        for rank, row in zip(ranks, rows, strict=True)
    )
    return (
        f"the ranks are not at the same step: {doing}. Every rank must call each runner equally often: an "
        "idle rank takes part with idle_step, in draft steps too"
    )
