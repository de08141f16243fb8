"""Ranks compare their row counts at each call of a compiled graph, over the CPU, before its first collective.

Unequal counts do not hang every backend: gloo aborts one process and hands the other plausible garbage. A
runner's and an engine's steps agree for themselves (``rows_agreed``).
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from oproj_pass.errors import GroupMismatchError
from oproj_pass.groups import ShardGroup
from oproj_pass.meeting import meet, report_failure
from oproj_pass.row_counts import RowCounts
from oproj_pass.rows_agreed import are_rows_agreed
from oproj_pass.runtime.wire import StepKind


class RowAgreement:
    """The comparison for one compiled graph.

    ``digest``: equal for graphs with equal collectives. ``timeout``: seconds to wait for a rank.
    """

    def __init__(self, rows: RowCounts, digest: str, timeout: float) -> None:
        self._rows, self._digest, self._timeout = rows, digest, timeout

    def require_equal(self, group: ShardGroup, arguments: Sequence[Any]) -> None:
        """Raise ``GroupMismatchError`` on every rank unless all call an equal graph with equal row counts."""
        if are_rows_agreed(group.ranks) or not group.has_peers:
            return
        rows = self._rows(arguments)
        brought = _in_words(rows)
        code = zlib.crc32(f"{self._digest} {brought}".encode())  # long words are cut on their way
        found = meet(group, StepKind.CALL, f"{code:08x} {brought}", self._timeout)
        if len(set(found.values())) > 1:
            raise GroupMismatchError(_difference(next(iter(rows)), found))

    def report(self, group: ShardGroup, error: Exception) -> None:
        """Tell peers, which may be about to compare, that this rank cannot run the graph."""
        if not are_rows_agreed(group.ranks):
            report_failure(group, error, self._timeout)


def _in_words(rows: Mapping[str, int]) -> str:
    """``3 rows``, or the layers by their row counts if these are not one."""
    paths: dict[int, list[str]] = {}
    for path, count in rows.items():
        paths.setdefault(count, []).append(path)
    if len(paths) == 1:
        return f"{next(iter(paths))} rows"
    return ", ".join(f"{count} rows in {layers[0]} (of {len(layers)} layers)" for count, layers in paths.items())


def _difference(path: str, found: Mapping[int, str]) -> str:
    brought = {rank: words.partition(" ")[2] for rank, words in found.items()}
    if len(set(brought.values())) == 1:
        return (
            f"{path}: ranks {list(found)} call graphs with different collectives. All ranks of a group must run "
            "the same layers in the same order."
        )
    listed = ", ".join(f"rank {rank} brings {words}" for rank, words in brought.items())
    return (
        f"{path}: unequal row counts in this call: {listed}. All ranks of a group must bring equally many rows: "
        "pad to a common captured size (DecodeRunner does), or set the option `capacity`."
    )
