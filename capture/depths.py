"""Which sizes a plan has besides those of its deepest step, where speculation changes its depth.

A graph serves a step of any depth that fits, so the sizes of the deepest steps serve all steps above the
first of them, at the padding of their own gaps. Below it the padding is worst: one request without drafts
would run the rows of one with all of them.
"""

from collections.abc import Sequence

from oproj_pass.capture.bounds import StepBound
from oproj_pass.capture.optimal import optimal_sizes

MOST_GRAPHS = 1.3
"""Graphs of a plan for several depths, by those of the plan for the deepest alone."""


def shallow_sizes(bound: StepBound, sizes: Sequence[int]) -> tuple[int, ...]:
    """The reachable steps below the first of the ascending `sizes` that save the most padding.

    As many as keep the plan within `MOST_GRAPHS`; possibly none.
    """
    allowed = int(len(sizes) * MOST_GRAPHS) - len(sizes)
    steps = [step for step in bound.reachable_steps() if step <= sizes[0]]
    return optimal_sizes(steps, dict.fromkeys(steps, 1), allowed + 1)[:-1]
