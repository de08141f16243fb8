"""What a rank tells its peers about a step: a fixed-size row of bytes.

Decides the layout only. Fixed, so that the collective that carries it never has to agree on a length first.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from oproj_pass.capture import GraphMode

ROW_BYTES = 512
_HEADER = struct.Struct("<HHHHHqq")
_NAME_BYTES = 64
_REASON_BYTES = ROW_BYTES - _HEADER.size - _NAME_BYTES


class StepKind(IntEnum):
    """What a rank is doing when it agrees with its peers: with a runner, or from GRAPH to MEASURE without.

    GRAPH: about to compile a graph; COMPILED: has compiled it; CALL: about to run it; MEASURE: about to time
    how it may add up; GATHER: has learned what its wide steps gather.
    """

    WARMUP = 0
    CAPTURE = 1
    STEP = 2
    FAILED = 3
    GRAPH = 4
    COMPILED = 5
    CALL = 6
    MEASURE = 7
    GATHER = 8


_KINDS, _MODES = {int(kind): kind for kind in StepKind}, {int(mode): mode for mode in GraphMode}


@dataclass(frozen=True)
class StepRow:
    """One rank's part of an agreement.

    Attributes:
        runner: the runner's name, so that a draft model's step never pairs with the model's own.
        kind: what the rank is doing.
        sequence: how often this runner has agreed before, the same on every rank unless one skipped.
        num_tokens: tokens the rank brings; for a capture, the size it captures; for GATHER, a digest.
        mode: the graph mode it can run.
        reason: why it cannot replay (or gather, for GATHER), or why it failed; empty if it can.
        gathers: whether it can run the step unsharded, if the group has to.
    """

    runner: str
    kind: StepKind
    sequence: int
    num_tokens: int
    mode: GraphMode
    reason: str = ""
    gathers: bool = False

    def __str__(self) -> str:
        """For the flight record."""
        words = f"{self.kind.name}, {self.num_tokens} tokens, {self.mode.name}"
        return f"{words}: {self.reason}" if self.reason else words

    def pack(self) -> bytearray:
        """The row as ``ROW_BYTES`` bytes; a name or reason that does not fit is cut."""
        name, reason = _encode(self.runner, _NAME_BYTES), _encode(self.reason, _REASON_BYTES)
        row = bytearray(ROW_BYTES)
        _HEADER.pack_into(
            row, 0, self.kind, self.mode, self.gathers, len(name), len(reason), self.sequence, self.num_tokens
        )
        start = _HEADER.size
        row[start : start + len(name) + len(reason)] = name + reason
        return row

    @classmethod
    def unpack(cls, row: bytes | bytearray) -> "StepRow":
        """The row that ``pack`` made. Raises ``ValueError`` for bytes that are not one."""
        kind, mode, gathers, name_length, reason_length, sequence, num_tokens = _HEADER.unpack_from(row)
        start = _HEADER.size
        middle = start + name_length
        name, reason = row[start:middle].decode(), row[middle : middle + reason_length].decode()
        if kind not in _KINDS or mode not in _MODES:
            raise ValueError(f"a row of kind {kind} and mode {mode}: no rank of this version sends one")
        return cls(name, _KINDS[kind], sequence, num_tokens, _MODES[mode], reason, bool(gathers))


def _encode(text: str, limit: int) -> bytes:
    encoded = text.encode()
    return encoded if len(encoded) <= limit else encoded[:limit].decode(errors="ignore").encode()
