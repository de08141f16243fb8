"""Ranks compare their rewritten graphs before they compile them, and meet again once they have.

For every graph with projections, whatever became of it on a rank: one that failed brings its error, so that
its peers raise instead of waiting. What is irreversible comes after the second meeting. A graph without
projections exchanges nothing and needs no peer.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import NoReturn

from torch._dynamo.exc import RestartAnalysis

from oproj_pass.agreement.barrier import meet, report_failure
from oproj_pass.agreement.known_errors import known_to_group
from oproj_pass.agreement.step_group import ControlGroup
from oproj_pass.agreement.wire import StepKind
from oproj_pass.errors import GroupMismatchError
from oproj_pass.groups import ShardGroup
from oproj_pass.passes.graph_fingerprint import Fingerprint, first_difference

_BUFFER_BYTES = 1 << 16  # about 60,000 lines of a fingerprint, compressed
_COMPILED, _RESTARTS = "compiled it", "has to trace it again"


@dataclass(frozen=True)
class GraphText:
    """What must be equal on all ranks: a graph's collectives, when they compare row counts, and strategies.

    ``plan``: the fingerprint of the capture plan, which has those of all sizes.
    """

    collectives: Fingerprint
    rows_compared: str
    plan: str = ""

    @property
    def digest(self) -> str:
        """Equal for equal texts."""
        return f"{zlib.crc32(self.encode()):08x}"

    def encode(self) -> bytes:
        """The text as bytes, see ``decode``."""
        return zlib.compress(json.dumps([self.rows_compared, self.plan, *self.collectives.lines]).encode())

    @classmethod
    def decode(cls, data: bytes) -> "GraphText":
        """The text that ``encode`` made."""
        rows_compared, plan, *lines = json.loads(zlib.decompress(data))
        return cls(Fingerprint(tuple(lines)), rows_compared, plan)


def agree_on_graph(group: ShardGroup, mine: GraphText, timeout: float) -> None:
    """Raise ``GroupMismatchError`` on every rank of ``group`` unless all bring the same text.

    ``timeout``: seconds to wait for a rank.
    """
    if not group.has_peers:
        return
    digests = meet(group, StepKind.GRAPH, mine.digest, timeout)
    if len(set(digests.values())) > 1:
        _raise_difference(group, mine, timeout)


@contextmanager
def compiling_together(group: ShardGroup, timeout: float) -> Iterator[None]:
    """Compile inside; nothing that cannot be undone belongs here.

    Leaves without an error once every rank has compiled. A rank that fails raises its own error, and its
    peers a ``GroupMismatchError`` with its words, at once.
    """
    try:
        yield
    except RestartAnalysis:  # no failure: Dynamo brings another graph, on every rank
        _agree_on_outcome(group, _RESTARTS, timeout)
        raise
    except Exception as error:
        report_failure(group, error, timeout)
        raise
    _agree_on_outcome(group, _COMPILED, timeout)


def _agree_on_outcome(group: ShardGroup, outcome: str, timeout: float) -> None:
    if not group.has_peers:
        return
    outcomes = meet(group, StepKind.COMPILED, outcome, timeout)
    if len(set(outcomes.values())) > 1:
        listed = "; ".join(f"rank {rank} {words}" for rank, words in outcomes.items())
        raise known_to_group(
            GroupMismatchError(
                f"ranks {list(group.ranks)} do not compile the same graph: {listed}. All ranks of a group "
                "must run the same model with the same options."
            )
        )


def _raise_difference(group: ShardGroup, mine: GraphText, timeout: float) -> NoReturn:
    """Every rank knows by now that the texts differ, and brings its own."""
    replies = ControlGroup(group).exchange(_frame(mine), timeout)
    texts = {group.ranks[place]: _unframe(data) for place, data in sorted(replies.rows.items())}
    raise known_to_group(
        GroupMismatchError(
            f"ranks {list(group.ranks)} compiled different graphs, first difference at {_difference(texts)}. "
            "All ranks of a group must run the same model with the same options and the same row counts."
        )
    )


def _difference(texts: Mapping[int, GraphText]) -> str:
    if len({text.rows_compared for text in texts.values()}) > 1:
        return "row counts: " + "; ".join(
            f"rank {rank} compares them {text.rows_compared}" for rank, text in texts.items()
        )
    sizes = {rank: text.plan.split("; ") for rank, text in texts.items()}
    for found in zip_longest(*sizes.values(), fillvalue=""):
        if len(set(found)) > 1:
            return "the plan: " + "; ".join(
                f"rank {rank} has {size or 'no strategies'}" for rank, size in zip(sizes, found, strict=True)
            )
    difference = first_difference({rank: text.collectives for rank, text in texts.items()})
    return difference or "a rank that was lost before it could say"


def _frame(text: GraphText) -> bytearray:
    data = text.encode()
    if len(data) > _BUFFER_BYTES - 4:
        summary = f"{len(text.collectives.lines)} collectives, hash {text.digest}"
        data = GraphText(Fingerprint((summary,)), text.rows_compared, text.plan).encode()
    return bytearray((len(data).to_bytes(4, "big") + data).ljust(_BUFFER_BYTES, b"\0"))


def _unframe(framed: bytes | bytearray) -> GraphText:
    length = int.from_bytes(framed[:4], "big")
    return GraphText.decode(bytes(framed[4 : 4 + length]))
