"""The lengths that an attention kernel takes for a rank's part of a prefill: real ones, and padded ones.

A prefill in chunks, or behind a cached prefix, starts at a position: its rows see the keys before it as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from oproj_pass.capture.checks import require_int
from oproj_pass.capture.context_split import ContextSplit
from oproj_pass.errors import ConfigError


@dataclass(frozen=True)
class AttentionLengths:
    """Queries and keys of each sequence, in the forms in which kernels take them."""

    q: tuple[int, ...]
    kv: tuple[int, ...]

    @property
    def q_cumulative(self) -> tuple[int, ...]:
        """Where each sequence's queries start, and where the last one's end."""
        return tuple(accumulate(self.q, initial=0))

    @property
    def kv_cumulative(self) -> tuple[int, ...]:
        """Where each sequence's keys start, and where the last one's end."""
        return tuple(accumulate(self.kv, initial=0))

    @property
    def q_max(self) -> int:
        """The most queries of a sequence."""
        return max(self.q, default=0)

    @property
    def kv_max(self) -> int:
        """The most keys of a sequence."""
        return max(self.kv, default=0)


@dataclass(frozen=True)
class ContextLengths:
    """`real`: without padding, for restoring and logging. `padded`: they add up to the rows that are there.

    Buffers are sized by padded ones: by real ones, a kernel reads behind its buffer (xLLM, PR 2003).
    """

    real: AttentionLengths
    padded: AttentionLengths


def context_lengths(split: ContextSplit, rank: int, starts: Sequence[int] = ()) -> ContextLengths:
    """The lengths of `rank`'s part of a batch.

    Args:
        split: the batch; keys of all ranks are gathered for each rank's queries.
        rank: whose queries.
        starts: tokens of each sequence before its rows, in the cache; none if empty.

    Raises:
        ConfigError: `starts` has another number of sequences or a negative one, or there is no such rank.
    """
    if starts and len(starts) != len(split.lengths):
        raise ConfigError(f"starts has {len(starts)} sequences, lengths has {len(split.lengths)}")
    for start in starts:
        require_int("starts", start, minimum=0)
    before = tuple(starts) or (0,) * len(split.lengths)
    real, padded = split.real_lengths(rank), split.local_lengths(rank)
    gathered = [
        sum(split.local_lengths(other)[place] for other in range(split.pcp_size))
        for place in range(len(split.lengths))
    ]
    return ContextLengths(
        AttentionLengths(real, tuple(map(sum, zip(before, split.lengths, strict=True)))),
        AttentionLengths(padded, tuple(map(sum, zip(before, gathered, strict=True)))),
    )
