"""The stepped grid of capture sizes, and its rounding under speculation.

Decides which sizes a ceiling stands for. Which ceiling applies and what is added to the grid is the
planner's (`planner.py`) and, for today's engines, `baselines.py`'s.
"""

from collections.abc import Iterable

from oproj_pass.capture.bounds import StepBound

DEFAULT_MAX_SIZE = 512


def capture_grid(max_size: int) -> tuple[int, ...]:
    """{1, 2, 4}, multiples of 8 below 256 and multiples of 16 from 256, up to and including `max_size`."""
    small = [size for size in (1, 2, 4) if size <= max_size]
    return (*small, *range(8, min(max_size + 1, 256), 8), *range(256, max_size + 1, 16))


def round_up(size: int, multiple: int) -> int:
    """Smallest multiple of `multiple` that is at least `size`."""
    return -(-size // multiple) * multiple


def uniform_sizes(sizes: Iterable[int], bound: StepBound, max_size: int) -> tuple[int, ...]:
    """`sizes` rounded up to whole requests of q tokens; those no decode batch can have are dropped.

    A size is kept iff it is at most `max_size` and R * q after rounding, which is the rule of vLLM's
    runner V2 for its full graphs.
    """
    limit = min(max_size, bound.max_num_seqs * bound.decode_query_len)
    rounded = {round_up(size, bound.decode_query_len) for size in sizes}
    return tuple(sorted(size for size in rounded if size <= limit))
