"""Tokens a step brings to dispatch under prefill context parallelism (PCP).

Decides the number only. Which rows each rank holds is `context_split.py`'s.
"""

from collections.abc import Callable, Sequence

from oproj_pass.capture.checks import require_int
from oproj_pass.errors import ConfigError


def dispatch_size(
    pcp_size: int, lengths: Sequence[int] | Callable[[], Sequence[int]], is_prefill: Sequence[bool]
) -> int:
    """Largest number of tokens that any of the `pcp_size` ranks runs in this step.

    Every rank runs every decode request. A prefill of L tokens is cut into 2P chunks of ceil(L / 2P), the
    last ones shorter or empty, and rank r runs chunks r and 2P - 1 - r.

    Args:
        pcp_size: P, ranks that share a prefill.
        lengths: tokens each request runs in this step, before any split; or a callable that returns them.
            With speculative decoding these counts follow from an update that the device sends
            asynchronously, and read too early they are the previous step's. Pass the counts only once they
            have arrived, else a callable that waits for them: it is called exactly once, here.
        is_prefill: whether each request is a prefill.

    Raises:
        ConfigError: P or a length is below 1, or the two sequences differ in length.
    """
    require_int("pcp_size", pcp_size, minimum=1)
    lengths = lengths() if callable(lengths) else lengths
    if len(lengths) != len(is_prefill):
        raise ConfigError(f"lengths has {len(lengths)} requests but is_prefill has {len(is_prefill)}")
    for length in lengths:
        require_int("lengths", length, minimum=1)
    requests = list(zip(lengths, is_prefill, strict=True))
    decode = sum(length for length, prefill in requests if not prefill)
    prefills = [length for length, prefill in requests if prefill]
    return decode + max(
        sum(_share(length, pcp_size, rank) for length in prefills) for rank in range(pcp_size)
    )


def _share(length: int, pcp_size: int, rank: int) -> int:
    """Tokens of a prefill that `rank` runs."""
    chunk = -(-length // (2 * pcp_size))
    starts = (rank * chunk, (2 * pcp_size - 1 - rank) * chunk)
    return sum(min(chunk, max(0, length - start)) for start in starts)
