"""Chooses the capture sizes of a deployment.

The ceiling comes from the user or the engine's default; below it the plan takes the user's list, the stepped
grid, or, under a budget, the sizes that pad least. The largest step the ceiling allows is always captured
exactly: rounded up it could never be dispatched, rounded down the fullest batches would run eager.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from oproj_pass.capture.baselines import full_graph_sizes
from oproj_pass.capture.bounds import StepBound
from oproj_pass.capture.checks import require_int
from oproj_pass.capture.depths import shallow_sizes
from oproj_pass.capture.grid import capture_grid, round_up, uniform_sizes
from oproj_pass.capture.histogram import Histogram, decode_histogram, uniform_histogram
from oproj_pass.capture.optimal import evenly_sampled, optimal_sizes
from oproj_pass.capture.padding import PaddingComparison, expected_padding
from oproj_pass.capture.plan import CapturePlan
from oproj_pass.capture.platforms import Platform, require_platform
from oproj_pass.capture.size_strategy import SizeStrategy
from oproj_pass.errors import ConfigError


def plan_capture(
    bound: StepBound,
    *,
    sizes: Sequence[int] | None = None,
    max_size: int | None = None,
    budget: int | None = None,
    histogram: Histogram | None = None,
    platform: str = "npu",
    strategies: Mapping[int, SizeStrategy | Mapping[str, Any] | str] | None = None,
) -> CapturePlan:
    """Plan which decode step sizes to capture.

    Args:
        bound: the scheduler limits.
        sizes: the user's `cudagraph_capture_sizes`. Rounded up to whole requests; sizes above the largest
            possible step give way to that step.
        max_size: the user's `max_cudagraph_capture_size`; never lowered to the grid below it.
        budget: most graphs the device can hold. The plan is then the one of least expected padding among
            those that keep the largest size and, from a budget of 2, the smallest.
        histogram: how often each step size occurs; uniform over the reachable steps by default.
        platform: "npu" (vllm-ascend) or "cuda" (vLLM): the default ceiling, and the engine to compare with.
        strategies: sizes whose graphs are written in a way of their own, see `CapturePlan.with_strategies`.

    Returns:
        The plan. It may not cover every possible step: see `CapturePlan.covers` and `.warning`.

    Raises:
        ConfigError: a value is out of range, `sizes` and `max_size` disagree (vLLM refuses that too), no
            decode step fits under the ceiling, or `strategies` do not fit the sizes.
    """
    defaults = require_platform(platform)
    largest = _largest_step(bound, _ceiling(bound, sizes, max_size, defaults))
    reasons = _unbudgeted_reasons(bound, sizes, largest)
    if budget is None and histogram is None:
        return _plan(bound, platform, reasons, None).with_strategies(strategies or {})

    steps = uniform_histogram(bound) if histogram is None else decode_histogram(histogram, bound)
    even = None
    if budget is not None:
        require_int("budget", budget, minimum=1)
        grid = sorted(reasons)
        reachable = [step for step in bound.reachable_steps() if step <= largest]
        chosen = optimal_sizes(reachable if sizes is None else grid, steps, budget)
        reasons = _budget_reasons(chosen, reasons[largest], budget)
        even = expected_padding(evenly_sampled(grid, len(chosen)), steps)
    default = None
    if not bound.speculative_depths:  # the full graphs of an engine are for one depth
        engine_sizes = full_graph_sizes(defaults.sizes(bound, sizes=sizes, max_size=max_size), bound)
        default = expected_padding(engine_sizes, steps)
    padding = PaddingComparison(plan=expected_padding(sorted(reasons), steps), default=default, even=even)
    return _plan(bound, platform, reasons, padding).with_strategies(strategies or {})


def _ceiling(bound: StepBound, sizes: Sequence[int] | None, max_size: int | None, defaults: Platform) -> int:
    if max_size is not None:
        require_int("max_size", max_size, minimum=1)
    if sizes is None:
        return defaults.default_max_size(bound) if max_size is None else max_size
    if not sizes:
        raise ConfigError("sizes is empty: give at least one, or leave it out for the default grid")
    for size in sizes:
        require_int("sizes", size, minimum=1)
    if max_size is not None and max_size != max(sizes):
        raise ConfigError(
            f"max_size={max_size} and the largest of sizes, {max(sizes)}, disagree: vLLM refuses to start. "
            f"Set only one of max_cudagraph_capture_size and cudagraph_capture_sizes"
        )
    return min(round_up(max(sizes), query_len) for query_len in bound.query_lens)


def _largest_step(bound: StepBound, ceiling: int) -> int:
    largest = bound.largest_step_within(ceiling)
    if largest is None:
        raise ConfigError(
            f"max_cudagraph_capture_size={ceiling} is below the {bound.query_lens[0]} tokens of one "
            f"decode request (1 + num_speculative_tokens): no decode step could be captured. "
            f"Raise it to {bound.max_decode_tokens}"
        )
    return largest


def _unbudgeted_reasons(bound: StepBound, sizes: Sequence[int] | None, largest: int) -> dict[int, str]:
    """The sizes up to `largest` when graphs are not counted, each with its reason."""
    if not bound.speculative_depths:
        return _grid_reasons(bound, sizes, largest)
    return _depth_reasons(bound, largest) if sizes is None else _list_reasons(bound, sizes, largest)


def _depth_reasons(bound: StepBound, largest: int) -> dict[int, str]:
    """The sizes of the deepest step, and a few below them for steps of fewer drafts."""
    deepest = replace(bound, speculative_depths=())
    reasons = {largest: _why_largest(bound, largest)}
    if (alone := deepest.largest_step_within(largest)) is not None:
        reasons = {**_grid_reasons(deepest, None, alone), **reasons}
        if alone != largest:
            del reasons[alone]
    drafts = bound.num_speculative_tokens
    added = shallow_sizes(bound, sorted(reasons))
    return reasons | dict.fromkeys(added, f"steps of fewer than {drafts} drafts a request")


def _list_reasons(bound: StepBound, sizes: Sequence[int], largest: int) -> dict[int, str]:
    """The user's sizes, each the next step that a batch of some depth can have."""
    steps = [step for step in bound.reachable_steps() if step <= largest]
    kept = {steps[bisect_left(steps, size)] for size in sizes if size <= largest}
    reasons = {
        step: "the user's list" if step in sizes else "the user's list, rounded up to the next decode step"
        for step in kept
    }
    return {**reasons, largest: _why_largest(bound, largest)}


def _grid_reasons(bound: StepBound, sizes: Sequence[int] | None, largest: int) -> dict[int, str]:
    """The sizes of one depth up to `largest`, each with its reason."""
    origin = "default grid" if sizes is None else "the user's list"
    asked = set(capture_grid(largest) if sizes is None else sizes)
    query_len = bound.decode_query_len
    reasons = {
        size: origin if size in asked else f"{origin}, rounded up to whole requests of {query_len} tokens"
        for size in uniform_sizes(asked, bound, largest)
    }
    if largest == bound.max_decode_tokens or largest not in reasons:
        reasons[largest] = _why_largest(bound, largest)
    return reasons


def _why_largest(bound: StepBound, largest: int) -> str:
    if largest == bound.max_decode_tokens:
        return "exactly the largest possible decode step"
    return "largest decode step under the ceiling"


def _budget_reasons(chosen: Sequence[int], largest_reason: str, budget: int) -> dict[int, str]:
    """The sizes chosen under a budget, each with the steps it serves."""
    served = zip((0, *chosen), chosen, strict=False)
    reasons = {
        size: f"optimal under a budget of {budget}: steps of {low + 1} to {size}" for low, size in served
    }
    return {**reasons, chosen[-1]: largest_reason}


def _plan(
    bound: StepBound, platform: str, reasons: dict[int, str], padding: PaddingComparison | None
) -> CapturePlan:
    sizes = tuple(sorted(reasons))
    return CapturePlan(bound, platform, sizes, tuple(reasons[size] for size in sizes), padding)
