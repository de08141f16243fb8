"""Meets a compiled graph's peers: words from every rank, or an error that names the rank that brought none.

The words travel as a runner's steps do, over the same connections, so a rank that is at a graph and a peer
that is at a step hear of each other at once instead of waiting. Decides nothing about graphs.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Timer

from oproj_pass.agreement.half_done import half_done
from oproj_pass.agreement.known_errors import known_to_group
from oproj_pass.agreement.step_group import ControlGroup, Replies
from oproj_pass.agreement.wire import StepKind, StepRow
from oproj_pass.capture import GraphMode
from oproj_pass.errors import GroupMismatchError, OProjError
from oproj_pass.flight.record import FLIGHT, Entry
from oproj_pass.groups import ShardGroup
from oproj_pass.profiling import profiled

logger = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds after which a rank that waits for a graph's peers says so."""

_NO_RUNNER = ""
_PURPOSES = {
    StepKind.GRAPH: "to compile the same graph",
    StepKind.COMPILED: "to finish compiling the same graph",
    StepKind.CALL: "to call the same graph",
    StepKind.MEASURE: "to measure how the same graph may exchange",
}
_DOINGS = {
    StepKind.GRAPH: "compiles a graph",
    StepKind.COMPILED: "has compiled a graph",
    StepKind.CALL: "calls a compiled graph",
    StepKind.MEASURE: "measures how a graph may exchange",
}


@profiled("oproj_pass::meet")
def meet(group: ShardGroup, kind: StepKind, words: str, timeout: float) -> dict[int, str]:
    """What each global rank of ``group`` brings to the same meeting.

    Raises ``GroupMismatchError`` if a rank failed, does not come within ``timeout`` seconds, or is doing
    something else; each rank that came raises it. So it does where an earlier call was left half done.
    """
    try:
        require_whole(group)
    except GroupMismatchError as error:
        report_failure(group, error, timeout)
        raise
    entry, replies = _exchange(group, kind, words, timeout)
    try:
        found = _words_of(group, kind, replies)
    except GroupMismatchError as error:
        entry.fail(str(error))
        raise
    entry.end(found)
    return found


def _words_of(group: ShardGroup, kind: StepKind, replies: Replies) -> dict[int, str]:
    rows = {group.ranks[place]: StepRow.unpack(row) for place, row in sorted(replies.rows.items())}
    failed = [
        f"rank {rank} failed: {row.reason}" for rank, row in rows.items() if row.kind is StepKind.FAILED
    ]
    if failed:
        raise known_to_group(GroupMismatchError(f"a rank of the group could not go on: {'; '.join(failed)}"))
    if replies.lost:
        raise GroupMismatchError(
            f"rank {group.ranks[group.rank]} waited for ranks {list(group.ranks)} {_PURPOSES[kind]} and lost "
            f"one: {_listed(group, replies)}. It died, is doing something else, or is slower than the option "
            f"`{'step_timeout' if kind is StepKind.CALL else 'timeout'}`."
        )
    if len({(row.runner, row.kind) for row in rows.values()}) > 1:
        raise known_to_group(
            GroupMismatchError(
                f"the ranks are not at the same graph: {_doing(rows)}. Every rank must compile the same "
                "graphs and call them equally often: a rank without requests takes part too."
            )
        )
    return {rank: row.reason for rank, row in rows.items()}


def require_whole(group: ShardGroup) -> None:
    """Raise ``GroupMismatchError`` if a call on ``group`` failed between its meeting and its end, here."""
    if (why := half_done(group.device)) is not None:
        raise GroupMismatchError(
            f"an earlier call on ranks {list(group.ranks)} failed and may have left half a collective, which "
            f"the next one would join: {why}. Restart the ranks together, or make their process group again."
        )


def report_failure(group: ShardGroup, error: Exception, timeout: float) -> None:
    """Bring ``error`` to the peers' meeting, so that they raise instead of waiting; never raises."""
    if not group.has_peers:
        return
    kind = "" if isinstance(error, OProjError) else f"{type(error).__name__}: "
    words = f"{kind}{' '.join(str(error).split())}"
    entry, replies = _exchange(group, StepKind.FAILED, words, timeout)
    entry.fail(words)
    if replies.lost:
        logger.warning("could not tell the group of a failure: %s", _listed(group, replies))
    else:
        known_to_group(error)


def _exchange(group: ShardGroup, kind: StepKind, words: str, timeout: float) -> tuple[Entry, Replies]:
    FLIGHT.rank = group.ranks[group.rank]
    entry = FLIGHT.meet("failure" if kind is StepKind.FAILED else kind.name.lower(), words)
    row = StepRow(_NO_RUNNER, kind, 0, 0, GraphMode.FULL, words)
    with _telling_of_a_long_wait(group, kind, timeout):
        return entry, ControlGroup(group).exchange(row.pack(), timeout)


@contextmanager
def _telling_of_a_long_wait(group: ShardGroup, kind: StepKind, timeout: float) -> Iterator[None]:
    """Say once, from a thread, whom this rank waits for; a call's wait is short and gets no thread."""
    if kind not in (StepKind.GRAPH, StepKind.COMPILED) or not group.has_peers:
        yield
        return
    own = group.ranks[group.rank]
    peers = [rank for rank in group.ranks if rank != own]
    words = (
        f"rank {own} has waited {PATIENCE:g} s for ranks {peers} {_PURPOSES[kind]}, and gives up after "
        f"{timeout:g} s (option `timeout`). A rank without requests calls the model too."
    )
    timer = Timer(PATIENCE, logger.warning, (words,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _listed(group: ShardGroup, replies: Replies) -> str:
    return "; ".join(f"rank {group.ranks[place]}: {why}" for place, why in sorted(replies.lost.items()))


def _doing(rows: Mapping[int, StepRow]) -> str:
    return "; ".join(
        f"rank {rank} {_DOINGS.get(row.kind, f'is at a step of the runner {row.runner!r}')}"
        for rank, row in rows.items()
    )
