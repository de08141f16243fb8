"""Which decode batches an engine sends to eager, and which of them a plan captures. Decides nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from oproj_pass.capture.baselines import eager_requests, full_graph_sizes
from oproj_pass.capture.bounds import StepBound
from oproj_pass.capture.planner import plan_capture
from oproj_pass.capture.platforms import require_platform

RequestRanges = tuple[tuple[int, int], ...]
"""Inclusive (low, high) ranges of request counts; a uniform decode batch of n requests has n * q tokens."""


@dataclass(frozen=True)
class CoverageComparison:
    """Uniform decode batches without a captured size, by request count.

    Attributes:
        engine_eager: those of the engine's own sizes, with the user's settings.
        plan_eager: those of our plan with the same settings; the plan warns of every one of them.
        raised_eager: those of our plan once max_size is the largest possible step, as the warning advises.
    """

    engine_eager: RequestRanges
    plan_eager: RequestRanges
    raised_eager: RequestRanges


def compare_coverage(
    bound: StepBound,
    *,
    sizes: Sequence[int] | None = None,
    max_size: int | None = None,
    platform: str = "npu",
) -> CoverageComparison:
    """Compare the engine of `platform` with `plan_capture` under one deployment's settings.

    Where speculation changes its depth, of the batches of the deepest.

    Raises:
        ConfigError: as `plan_capture`.
    """
    plan = plan_capture(bound, sizes=sizes, max_size=max_size, platform=platform)
    raised = plan_capture(bound, max_size=bound.max_decode_tokens, platform=platform)
    engine_sizes = require_platform(platform).sizes(bound, sizes=sizes, max_size=max_size)
    return CoverageComparison(
        engine_eager=eager_requests(full_graph_sizes(engine_sizes, bound), bound),
        plan_eager=eager_requests(plan.sizes, bound),
        raised_eager=eager_requests(raised.sizes, bound),
    )
