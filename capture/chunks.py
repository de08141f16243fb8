"""The chunk rule of prefill context parallelism (PCP): which tokens of a sequence each rank holds.

A sequence of L tokens is cut into 2P chunks of ceil(L / 2P), the last ones shorter or empty, and rank r holds
chunks r and 2P - 1 - r: one early and one late, so that causal attention costs every rank about the same.
Everything that counts or moves a rank's tokens stands on this file.
"""

from collections.abc import Sequence


def rank_chunks(length: int, pcp_size: int, rank: int) -> tuple[range, range]:
    """Positions of the two chunks that `rank` of `pcp_size` holds of a sequence of `length` tokens."""
    chunk = -(-length // (2 * pcp_size))
    early, late = (min(index * chunk, length) for index in (rank, 2 * pcp_size - 1 - rank))
    return range(early, min(early + chunk, length)), range(late, min(late + chunk, length))


def rank_share(length: int, pcp_size: int, rank: int) -> int:
    """Tokens of one sequence that `rank` holds."""
    return sum(map(len, rank_chunks(length, pcp_size, rank)))


def largest_share(lengths: Sequence[int], pcp_size: int) -> int:
    """Tokens of the rank that holds most of the sequences together; the other ranks pad to as many."""
    return max(sum(rank_share(length, pcp_size, rank) for length in lengths) for rank in range(pcp_size))
