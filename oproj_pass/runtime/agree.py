"""Ranks agree on a step, with exactly one collective, before any of them runs it.

Decides what the group does from what every rank brought, and raises on every rank where they do not fit. A
rank that cannot go on says so in the same collective, so its peers hear the reason instead of waiting.
"""

import logging
from dataclasses import dataclass
from typing import NoReturn

from oproj_pass.capture import GraphMode, StepAgreement, agree_step, encode_step
from oproj_pass.errors import GroupMismatchError
from oproj_pass.runtime.exchange import Replies, StepGroup
from oproj_pass.runtime.wire import StepKind, StepRow, checksum

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgreedStep:
    """What all ranks know after agreeing, and nothing else: equal on every one of them.

    Attributes:
        agreement: the largest token count and the lowest graph mode.
        rows: what each rank brought, in group order.
        ranks: their global ranks.
    """

    agreement: StepAgreement
    rows: tuple[StepRow, ...]
    ranks: tuple[int, ...]


class Agreement:
    """The meetings of one runner with its peers.

    ``num_meetings`` counts the collectives issued; every meeting compares it, so it is equal on all ranks.
    """

    def __init__(self, group: StepGroup, name: str) -> None:
        self.group, self.name = group, name
        self.num_meetings = 0
        self._runner = checksum(name)

    def meet(
        self, kind: StepKind, num_tokens: int, mode: GraphMode, words: str, timeout: float
    ) -> AgreedStep:
        """Bring this rank's part and return the group's.

        Raises:
            GroupMismatchError: a rank is missing, failed, or is doing something else; names it.
        """
        mine = StepRow(self._runner, kind, self.num_meetings, num_tokens, mode, words)
        replies = self.group.exchange(mine.pack(), timeout)
        self.num_meetings += 1
        if replies.lost:
            self._report_lost(mine, replies, timeout)
        rows = tuple(StepRow.unpack(replies.rows[place]) for place in range(len(self.group.ranks)))
        self._require_together(mine, rows)
        agreement = agree_step([encode_step(row.num_tokens, row.mode) for row in rows])
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s meeting %d: %s", self.name, mine.step, agreement)
        return AgreedStep(agreement, rows, self.group.ranks)

    def call_roll(self, words: str, timeout: float) -> str:
        """Tell the peers that this rank failed, and return what they say: every lost or failed rank, named.

        ``timeout``: seconds to wait for a peer, which may still be stuck in the collective that failed here.
        """
        row = StepRow(self._runner, StepKind.FAILED, self.num_meetings, 0, GraphMode.NONE, words)
        replies = self.group.exchange(row.pack(), timeout)
        self.num_meetings += 1
        return self._describe(replies)

    def _report_lost(self, mine: StepRow, replies: Replies, timeout: float) -> NoReturn:
        found = self._describe(replies)
        if not replies.closed:  # a peer that still got the lost rank's row is now waiting in the step itself
            self.call_roll(found, 2 * timeout)
        raise GroupMismatchError(
            f"{self._where(mine)} waited for ranks {list(self.group.ranks)}: {found}. The group cannot go on "
            "without it: restart its ranks together."
        )

    def _require_together(self, mine: StepRow, rows: tuple[StepRow, ...]) -> None:
        failed = [place for place, row in enumerate(rows) if row.kind is StepKind.FAILED]
        if failed:
            told = "; ".join(
                f"rank {self.group.ranks[place]} failed: {rows[place].words}" for place in failed
            )
            raise GroupMismatchError(
                f"{self._where(mine)}: {told}. The group cannot go on without it: restart its ranks together."
            )
        if len({(row.runner, row.kind, row.step) for row in rows}) > 1:
            doing = "; ".join(
                f"rank {rank} is at meeting {row.step} of {self._runner_name(row)} ({row.kind.name})"
                for rank, row in zip(self.group.ranks, rows, strict=True)
            )
            raise GroupMismatchError(
                f"{self._where(mine)}: the ranks are not at the same step: {doing}. Every rank must call each "
                "runner equally often: an idle rank takes part with idle_step, in draft steps too."
            )

    def _describe(self, replies: Replies) -> str:
        ranks = self.group.ranks
        told = {place: f"rank {ranks[place]} is lost, {why}" for place, why in replies.lost.items()}
        for place, packed in replies.rows.items():
            row = StepRow.unpack(packed)
            if place != self.group.rank and row.kind is StepKind.FAILED:
                told[place] = f"rank {ranks[place]} failed: {row.words}"
        return "; ".join(told[place] for place in sorted(told)) or "no other rank reports a failure"

    def _where(self, row: StepRow) -> str:
        return f"{self.name}, meeting {row.step}: rank {self.group.ranks[self.group.rank]}"

    def _runner_name(self, row: StepRow) -> str:
        return f"{self.name!r}" if row.runner == self._runner else "another runner"
