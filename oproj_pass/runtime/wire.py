"""What a rank tells its peers about a step: a fixed-size row of bytes.

Decides the layout only. Fixed, so that the collective that carries it never has to agree on a length first.
"""

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

from oproj_pass.capture import GraphMode

ROW_BYTES = 512
_HEADER = struct.Struct("<IHHqqq")
_TEXT_BYTES = ROW_BYTES - _HEADER.size


class StepKind(IntEnum):
    """What a rank is doing when it meets its peers."""

    WARMUP = 0
    CAPTURE = 1
    STEP = 2
    FAILED = 3


@dataclass(frozen=True)
class StepRow:
    """One rank's part of an agreement.

    Attributes:
        runner: checksum of the runner's name, so that a draft model's step never pairs with the model's own.
        kind: what the rank is doing.
        step: how often this runner has met its peers before, the same on every rank unless one skipped.
        num_tokens: tokens the rank brings; for a capture, the size it captures.
        mode: the graph mode it can run.
        words: why it cannot replay, or why it failed; empty if it can.
    """

    runner: int
    kind: StepKind
    step: int
    num_tokens: int
    mode: GraphMode
    words: str = ""

    def pack(self) -> bytearray:
        """The row as ``ROW_BYTES`` bytes; words that do not fit are cut."""
        text = self.words.encode()[:_TEXT_BYTES].decode(errors="ignore").encode()
        row = bytearray(ROW_BYTES)
        _HEADER.pack_into(row, 0, self.runner, self.kind, self.mode, self.step, self.num_tokens, len(text))
        row[_HEADER.size : _HEADER.size + len(text)] = text
        return row

    @classmethod
    def unpack(cls, row: bytes | bytearray) -> "StepRow":
        """The row that ``pack`` made. Raises ``ValueError`` for bytes that are not one."""
        runner, kind, mode, step, num_tokens, length = _HEADER.unpack_from(row)
        words = bytes(row[_HEADER.size : _HEADER.size + length]).decode() if length else ""
        return cls(runner, StepKind(kind), step, num_tokens, GraphMode(mode), words)


def checksum(name: str) -> int:
    """The number that stands for a runner's name in a row."""
    return zlib.crc32(name.encode())
