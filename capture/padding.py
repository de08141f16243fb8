"""What a list of capture sizes costs under a histogram. Decides nothing."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from oproj_pass.capture.histogram import Histogram


@dataclass(frozen=True)
class Padding:
    """Expected cost of one decode step under some list of sizes.

    Attributes:
        num_sizes: graphs to capture.
        tokens: mean pad rows of a step, over the steps that replay a graph; 0.0 if none does.
        percent: pad rows among all rows that those steps run, in percent.
        eager_percent: steps above the largest size, in percent of all steps.
    """

    num_sizes: int
    tokens: float
    percent: float
    eager_percent: float

    def __str__(self) -> str:
        return (
            f"{self.num_sizes} sizes, {self.tokens:.2f} pad tokens a step ({self.percent:.1f}% of the rows), "
            f"{self.eager_percent:.1f}% of the steps eager"
        )


@dataclass(frozen=True)
class PaddingComparison:
    """A plan beside what its engine would do.

    Attributes:
        plan: the plan's own sizes.
        default: what the engine of the plan's platform captures itself, with the same user settings; None
            where speculation changes its depth, which no engine's list of sizes serves.
        even: as many sizes as the plan has, sampled evenly from the unbudgeted plan; None without a budget.
    """

    plan: Padding
    default: Padding | None
    even: Padding | None


def expected_padding(sizes: Sequence[int], histogram: Histogram) -> Padding:
    """Expected padding of the ascending `sizes` (possibly none) under a non-empty `histogram`."""
    captured = {step: weight for step, weight in histogram.items() if sizes and step <= sizes[-1]}
    weight = sum(captured.values())
    pad = sum(w * (sizes[bisect_left(sizes, step)] - step) for step, w in captured.items())
    rows = pad + sum(w * step for step, w in captured.items())
    total = sum(histogram.values())
    return Padding(
        num_sizes=len(sizes),
        tokens=pad / weight if weight else 0.0,
        percent=100 * pad / rows if rows else 0.0,
        eager_percent=100 * (total - weight) / total,
    )
