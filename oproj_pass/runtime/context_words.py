"""What ranks tell each other of a prefill step's batches, and what is wrong with them.

Ranks that share prompts have to bring the same requests, which equally many rows do not show: a prefill of 7
rows and one of 8 are 4 on each of two ranks. Decides from what every rank brought and from nothing else, so
all ranks of all groups decide alike.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from oproj_pass.capture import ContextBatch, GraphMode
from oproj_pass.runtime.agree import AgreedStep


@dataclass(frozen=True)
class BatchWords:
    """One rank's batch, as the ``reason`` of its ``StepRow``.

    Attributes:
        leader: the first of the ranks that share it.
        num_ranks: how many they are.
        code: equal for equal ranks and batches.
        text: the batch, for messages; it may be cut on its way.
    """

    leader: int
    num_ranks: int
    code: int
    text: str

    @classmethod
    def of(cls, ranks: Sequence[int], batch: ContextBatch, *, idle: bool) -> "BatchWords":
        """The words of a batch that ``ranks`` share; ``idle``: it is a dummy batch."""
        code = zlib.crc32(repr((tuple(ranks), batch.lengths, batch.is_prefill, idle)).encode())
        return cls(ranks[0], len(ranks), code, "no requests" if idle else str(batch))

    def pack(self) -> str:
        """As one string, see ``unpack``."""
        return f"{self.leader} {self.num_ranks} {self.code:08x} {self.text}"

    @classmethod
    def unpack(cls, words: str) -> "BatchWords":
        """The words that ``pack`` wrote."""
        leader, num_ranks, code, text = words.split(" ", 3)
        return cls(int(leader), int(num_ranks), int(code, 16), text)


def refusal(step: AgreedStep) -> str | None:
    """Why no rank may run this step, in words that name the ranks; None if all may."""
    brought = list(zip(step.ranks, step.rows, strict=True))
    if unfit := [f"rank {rank}: {row.reason}" for rank, row in brought if row.mode is GraphMode.NONE]:
        return f"a rank cannot run it: {'; '.join(unfit)}"
    sharing: dict[int, dict[int, BatchWords]] = {}
    for rank, row in brought:
        words = BatchWords.unpack(row.reason)
        sharing.setdefault(words.leader, {})[rank] = words
    for found in sharing.values():
        batches = {(words.num_ranks, words.code) for words in found.values()}
        if batches != {(len(found), next(iter(found.values())).code)}:
            listed = ", ".join(f"rank {rank} brings {words.text}" for rank, words in found.items())
            return f"ranks that share prompts bring different batches: {listed}"
    return None
