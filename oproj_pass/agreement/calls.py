"""Ranks meet on the CPU before a compiled graph's first collective of a call, and compare their row counts.

Unequal counts do not hang every backend: gloo aborts one process and hands the other plausible garbage. A
runner's and an engine's steps have agreed already (``rows_agreed``); only a graph's first call, where weights
are cut and may turn out to be unfit, is met there too. What is replayed from a device graph never comes here.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from oproj_pass.agreement.barrier import meet, report_failure, require_whole
from oproj_pass.agreement.graphs import GraphText
from oproj_pass.agreement.half_done import note_half_done
from oproj_pass.agreement.known_errors import known_to_group
from oproj_pass.agreement.remade_groups import FollowedGroup
from oproj_pass.agreement.rows_agreed import are_rows_agreed
from oproj_pass.agreement.wire import StepKind
from oproj_pass.errors import GroupMismatchError
from oproj_pass.flight.graph_call import GraphCall
from oproj_pass.flight.record import FLIGHT
from oproj_pass.groups import ShardGroup, ShardGroups

RowsOf = Callable[[Sequence[Any]], Mapping[str, int]]


class CallAgreement:
    """The meetings of one compiled graph's calls, over ``groups`` or those that take their places.

    ``path``: a layer of the graph, for messages. ``rows``: the rows that each layer gets from a call's
    arguments, to compare at each call; None: the ranks meet at the first call only. ``text``: the graph's
    collectives, and the plan that it is written by. ``timeout``: seconds to wait for a rank.
    """

    def __init__(
        self, groups: ShardGroups, path: str, rows: RowsOf | None, text: GraphText, timeout: float
    ) -> None:
        self._group = groups.joint
        self._used = [FollowedGroup(group, path) for group in groups.all]
        self._path, self._rows, self._timeout = path, rows, timeout
        self._digest, self._collectives, self.plan = text.digest, text.collectives.lines, text.plan
        self._ran = False

    @property
    def group(self) -> ShardGroup:
        """The ranks that meet, among them all that exchange rows in the graph now."""
        return self._group

    @property
    def groups(self) -> list[ShardGroup]:
        """These ranks, and all groups of them in which the graph exchanges rows now."""
        return [used.group for used in self._used]

    @contextmanager
    def preparing(self, arguments: Sequence[Any]) -> Iterator[None]:
        """Prepare a call inside; on leaving, every rank has, and brings an equal graph and equal row counts.

        Raises ``GroupMismatchError`` on every rank if not. A rank that fails inside raises its own error.
        """
        self._follow_groups()
        if not (self._must_meet() and self._group.has_peers):
            self._require_whole()
            yield
            return
        try:
            self._require_whole()
            yield
            brought = _in_words(self._rows(arguments)) if self._rows else ""
        except Exception as error:
            report_failure(self._group, error, self._timeout)
            raise
        code = zlib.crc32(f"{self._digest} {brought}".encode())  # long words are cut on their way
        found = meet(self._group, StepKind.CALL, f"{code:08x} {brought}", self._timeout)
        if len(set(found.values())) > 1:
            raise known_to_group(_mismatch(self._path, found))
        self._ran = True

    def run(self, graph: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Call ``graph``, once prepared. If it fails, no group of it serves any more, see ``half_done``."""
        if self._group.has_peers:
            FLIGHT.graph_call = GraphCall.begin(self._collectives, [used.group.device for used in self._used])
        try:
            result = graph(*arguments)
        except BaseException as error:
            if self._group.has_peers:
                for used in self._used:
                    note_half_done(used.group.device, f"{self._path}: {type(error).__name__}: {error}")
            raise
        FLIGHT.graph_call = None
        return result

    def _require_whole(self) -> None:
        for used in self._used:
            require_whole(used.group)

    def _must_meet(self) -> bool:
        return not self._ran or (self._rows is not None and not are_rows_agreed(self._group.ranks))

    def _follow_groups(self) -> None:
        for used in self._used:
            used.follow()
        self._group = self._used[-1].group


def _in_words(rows: Mapping[str, int]) -> str:
    """``3 rows``, or the layers by their row counts if these are not one."""
    paths: dict[int, list[str]] = {}
    for path, count in rows.items():
        paths.setdefault(count, []).append(path)
    if len(paths) == 1:
        return f"{next(iter(paths))} rows"
    return ", ".join(
        f"{count} rows in {layers[0]} (of {len(layers)} layers)" for count, layers in paths.items()
    )


def _mismatch(path: str, found: Mapping[int, str]) -> GroupMismatchError:
    brought = {rank: words.partition(" ")[2] for rank, words in found.items()}
    if len(set(brought.values())) == 1:
        return GroupMismatchError(
            f"{path}: ranks {list(found)} call graphs with different collectives. All ranks of a group must "
            "run the same layers in the same order."
        )
    listed = ", ".join(f"rank {rank} brings {words}" for rank, words in brought.items())
    return GroupMismatchError(
        f"{path}: unequal row counts in this call: {listed}. All ranks of a group must bring equally many "
        "rows: pad to a common captured size (DecodeRunner does), or set the option `capacity`."
    )
