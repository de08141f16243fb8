"""Tokens a step brings to dispatch under prefill context parallelism (PCP).

Decides what counts as a prefill, and the number. Which rows each rank holds is `context_split.py`'s.
"""

from collections.abc import Sequence

from oproj_pass.capture.checks import require_int
from oproj_pass.capture.chunks import largest_share
from oproj_pass.errors import ConfigError


def is_prefilling(prompt_len: int, num_computed: int) -> bool:
    """Whether a step still prefills a prompt of which `num_computed` tokens are in the cache.

    A prompt with one token left is a decode: it arrives so from a prefill node, which sent the cache of all
    the others, and its last token and drafts run on every rank (vllm-ascend#17128).
    """
    return prompt_len - num_computed > 1


def dispatch_size(pcp_size: int, lengths: Sequence[int], is_prefill: Sequence[bool]) -> int:
    """Largest number of tokens that any of the `pcp_size` ranks runs in this step.

    Every rank runs every decode request, and its chunks of every prefill (`chunks.py`).

    Args:
        pcp_size: P, ranks that share a prefill.
        lengths: tokens each request runs in this step, before any split.
        is_prefill: whether each request is a prefill.

    Raises:
        ConfigError: P or a length is below 1, or the two sequences differ in length.
    """
    require_int("pcp_size", pcp_size, minimum=1)
    if len(lengths) != len(is_prefill):
        raise ConfigError(f"lengths has {len(lengths)} requests but is_prefill has {len(is_prefill)}")
    for length in lengths:
        require_int("lengths", length, minimum=1)
    requests = list(zip(lengths, is_prefill, strict=True))
    decode = sum(length for length, prefill in requests if not prefill)
    return decode + largest_share([length for length, prefill in requests if prefill], pcp_size)
