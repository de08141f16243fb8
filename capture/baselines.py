"""What today's engines capture by themselves: the lists a plan is compared with.

Follows vLLM 0.32 and 0.33 (`vllm_sizes`) and vllm-ascend 0.23 (`vllm_ascend_sizes`), faults included. Plans
come from `planner.py`; nothing here improves on anything.
"""

from collections.abc import Sequence

from oproj_pass.capture.bounds import StepBound
from oproj_pass.capture.grid import DEFAULT_MAX_SIZE, capture_grid, round_up, uniform_sizes

Sizes = tuple[int, ...]


def vllm_max_size(bound: StepBound) -> int:
    """The ceiling vLLM takes when none is set: min(2 * R * q, 512), cut to T."""
    requests = bound.max_num_seqs * bound.decode_query_len
    return min(2 * requests, DEFAULT_MAX_SIZE, bound.max_num_batched_tokens)


def vllm_ascend_max_size(bound: StepBound) -> int:
    """The ceiling vllm-ascend injects when none is set: min(R * q, 512), cut to T."""
    requests = bound.max_num_seqs * bound.decode_query_len
    return min(requests, DEFAULT_MAX_SIZE, bound.max_num_batched_tokens)


def vllm_sizes(bound: StepBound, *, sizes: Sequence[int] | None = None, max_size: int | None = None) -> Sizes:
    """vLLM's final `cudagraph_capture_sizes`.

    A user's list is sorted and cut to T. Otherwise it is the grid up to min(2 * R * q, 512) or the user's
    ceiling, plus T if that fits, plus R * q if that fits and the ceiling is the default one.
    """
    if sizes is not None:
        return _user_list(bound, sizes)
    exact = {bound.max_num_batched_tokens}
    if max_size is None:
        max_size = vllm_max_size(bound)
        exact.add(bound.max_num_seqs * bound.decode_query_len)
    ceiling = min(max_size, bound.max_num_batched_tokens)
    return tuple(sorted({*capture_grid(ceiling), *(size for size in exact if size <= ceiling)}))


def vllm_ascend_sizes(
    bound: StepBound, *, sizes: Sequence[int] | None = None, max_size: int | None = None
) -> Sizes:
    """vllm-ascend's final `cudagraph_capture_sizes`: the grid up to min(R * q, 512) or the user's ceiling."""
    if sizes is not None:
        return _user_list(bound, sizes)
    if max_size is None:
        max_size = vllm_ascend_max_size(bound)
    return capture_grid(min(max_size, bound.max_num_batched_tokens))


def full_graph_sizes(sizes: Sizes, bound: StepBound) -> Sizes:
    """Token counts of the full decode graphs that vLLM's runner V2 captures for these config sizes."""
    return uniform_sizes(sizes, bound, sizes[-1]) if sizes else ()


def runner_v1_sizes(sizes: Sizes, bound: StepBound) -> Sizes:
    """The sizes after runner V1 rounded them up to multiples of q; empty where it refuses to start."""
    query_len, max_size = bound.decode_query_len, sizes[-1]
    rounded = sorted({round_up(size, query_len) for size in sizes})
    kept = tuple(size for size in rounded if size <= max_size)
    return kept or ((query_len,) if query_len <= max_size else ())


def eager_requests(sizes: Sizes, bound: StepBound) -> tuple[tuple[int, int], ...]:
    """Request counts whose uniform decode batch has no captured size, as inclusive (low, high) ranges."""
    first = (sizes[-1] if sizes else 0) // bound.decode_query_len + 1
    last = min(bound.max_num_seqs, bound.max_num_batched_tokens // bound.decode_query_len)
    return ((first, last),) if first <= last else ()


def _user_list(bound: StepBound, sizes: Sequence[int]) -> Sizes:
    return tuple(sorted({size for size in sizes if size <= bound.max_num_batched_tokens}))
