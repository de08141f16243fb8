"""Agrees with the other ranks of a group: exactly one collective a step, whatever became of it here.

A rank that cannot go on says so in an exchange of its own, which pairs with its peers' next one, so they hear
the reason instead of waiting for it.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from oproj_pass.agreement.half_done import half_done, note_half_done
from oproj_pass.agreement.known_errors import is_known_to_group
from oproj_pass.agreement.rows_agreed import rows_agreed
from oproj_pass.agreement.step_group import ControlGroup, Replies, StepGroup, carrier_of, has_peers
from oproj_pass.agreement.wire import StepKind, StepRow
from oproj_pass.capture import GraphMode
from oproj_pass.errors import GroupMismatchError, OProjError
from oproj_pass.flight.record import FLIGHT, Entry
from oproj_pass.groups import ShardGroup
from oproj_pass.profiling import profiled
from oproj_pass.runtime.agree import AgreedStep, disagreement

logger = logging.getLogger(__name__)

_RESTART = "The group cannot go on: restart its ranks together."


class Peers:
    """One runner's agreements with its peers, until a rank is lost or fails.

    Args:
        group: the ranks.
        name: the runner's name, for messages and to tell runners of one group apart.
        timeout: seconds a step waits for a rank; ``capture_timeout`` before serving.

    ``rows_agreed`` surrounds what runs after the group has agreed. ``sequence``: the number of the last
    agreement that was begun.
    """

    def __init__(self, group: StepGroup, name: str, timeout: float, capture_timeout: float) -> None:
        self.group, self.name = group, name
        self.rows_agreed = rows_agreed(group.ranks)
        FLIGHT.rank = group.ranks[group.rank]
        self.num_agreements = self.sequence = 0
        self.last: AgreedStep | None = None
        self._stopped: str | None = None
        self._inside: set[ShardGroup] = set()
        self._carriers = self._found_carriers()
        self._timeout, self._capture_timeout = timeout, capture_timeout

    def exchange_in(self, groups: Iterable[ShardGroup]) -> None:
        """Collectives of the steps run in these groups of the ranks too: one of a role's size, say."""
        self._inside.update(groups)
        self._carriers = self._found_carriers()

    def limit_collectives(self) -> None:
        """Let no collective of a step wait longer for a rank than the step itself."""
        self.group.limit_collectives(self._timeout)
        for group in self._inside:
            ControlGroup(group).limit_collectives(self._timeout)

    @profiled("oproj_pass::agree")
    def agree(
        self, kind: StepKind, num_tokens: int, mode: GraphMode, reason: str = "", *, gathers: bool = False
    ) -> AgreedStep:
        """Bring this rank's part and return the group's.

        Raises ``GroupMismatchError`` if a rank is missing, failed, or is doing something else; names it.
        """
        self.require_going()
        self.sequence = self.num_agreements
        self._require_whole(kind)
        row = StepRow(self.name, kind, self.sequence, num_tokens, mode, reason, gathers)
        entry, replies = self._exchange(row, self._wait_of(kind))
        if replies.lost:
            found = self._describe(replies)
            entry.fail(found)
            if not replies.closed:  # a peer that still heard of the lost rank is now waiting in the step
                self._exchange_failures(found, kind)
            self._stop(f"waited for ranks {list(self.group.ranks)}: {found}. {_RESTART}")
        rows = [StepRow.unpack(replies.rows[place]) for place in range(len(self.group.ranks))]
        if (difference := disagreement(rows, self.group.ranks)) is not None:
            entry.fail(difference)
            self._stop(f"{difference}. {_RESTART}")
        self.last = AgreedStep.of(rows, self.group.ranks)
        entry.end(self.last)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s, agreement %d: %s", self.name, self.sequence, self.last.agreement)
        return self.last

    def bring_error(self, error: Exception) -> None:
        """Take part in a step with what was wrong with this rank's part, for the caller to raise then."""
        self.agree(StepKind.STEP, 0, GraphMode.NONE, f"{type(error).__name__}: {error}")

    def require_equal(self, kind: StepKind, num_tokens: int) -> None:
        """Agree, and raise ``GroupMismatchError`` on every rank unless all bring the same count."""
        counts = self.agree(kind, num_tokens, GraphMode.FULL).tokens_by_rank
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"rank {rank} brings {count}" for rank, count in counts.items())
            self._stop(f"{kind.name} sizes must be equal on all ranks: {listed}")

    @contextmanager
    def failing_together(self, doing: str, *, runs: bool) -> Iterator[None]:
        """Tell the group of an error that happens inside; ``runs``: collectives of the model run there."""
        entry = FLIGHT.begin(doing, self.name, self.sequence, "")
        try:
            yield
        except Exception as error:
            entry.fail(f"{type(error).__name__}: {error}")
            self.fail(doing, error, has_run=runs)
        entry.end()

    def fail(self, doing: str, error: Exception, *, has_run: bool) -> NoReturn:
        """Tell the group of ``error``, unless it knows, and raise it with the answer, as a project error.

        ``has_run``: collectives of the model may have begun, so no other runner may use their groups either.
        """
        brief = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if is_known_to_group(error):  # and no rank went on to a collective
            told = "every rank has heard of it"
        else:
            if has_run and has_peers(self.group):
                for carrier in self._carriers:
                    note_half_done(carrier, f"{self.name}: {doing} failed: {brief}")
            told = self._exchange_failures(f"{doing}: {brief}", StepKind.STEP)
        message = f"{self._where()}: {doing} failed: {error}. Its group: {told}."
        self._stopped = f"{doing} failed: {brief}. Its group: {told}"
        kind = type(error) if isinstance(error, OProjError) else GroupMismatchError
        raise kind(message) from error

    def require_going(self) -> None:
        """Raise ``GroupMismatchError`` if an earlier step ended the group."""
        if self._stopped is not None:
            raise GroupMismatchError(f"{self._where()} stopped earlier: {self._stopped}")

    def _require_whole(self, kind: StepKind) -> None:
        if (why := half_done(*self._carriers)) is not None:
            error = GroupMismatchError(f"an earlier call of its group may have left half a collective: {why}")
            self.fail(kind.name, error, has_run=False)

    def _found_carriers(self) -> list[object]:
        """What collectives of the steps run on."""
        return [carrier_of(self.group), *(group.device for group in self._inside)]

    def _exchange_failures(self, reason: str, kind: StepKind) -> str:
        """Tell every peer that this rank failed; returns every lost or failed rank, named, with its reason.

        Waits twice as long as an agreement, for a peer that is stuck in the collective that failed here.
        """
        row = StepRow(self.name, StepKind.FAILED, self.num_agreements, 0, GraphMode.NONE, reason)
        entry, replies = self._exchange(row, 2 * self._wait_of(kind))
        found = self._describe(replies)
        entry.fail(found)
        return found

    def _exchange(self, row: StepRow, timeout: float) -> tuple[Entry, Replies]:
        self.num_agreements += 1
        what = "failure" if row.kind is StepKind.FAILED else "agreement"
        entry = FLIGHT.begin(what, self.name, self.sequence, row)
        return entry, self.group.exchange(row.pack(), timeout)

    def _wait_of(self, kind: StepKind) -> float:
        return self._timeout if kind is StepKind.STEP else self._capture_timeout

    def _describe(self, replies: Replies) -> str:
        ranks = self.group.ranks
        told = {place: f"rank {ranks[place]} is lost, {why}" for place, why in replies.lost.items()}
        for place, packed in replies.rows.items():
            row = StepRow.unpack(packed)
            if place != self.group.rank and row.kind is StepKind.FAILED:
                told[place] = f"rank {ranks[place]} failed: {row.reason}"
        return "; ".join(told[place] for place in sorted(told)) or "no other rank reports a failure"

    def _stop(self, why: str) -> NoReturn:
        self._stopped = why
        raise GroupMismatchError(f"{self._where()}: {why}")

    def _where(self) -> str:
        rank = self.group.ranks[self.group.rank]
        return f"{self.name}, agreement {self.sequence} on rank {rank}"
