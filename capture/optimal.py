"""Which capture sizes pad least when only so many graphs fit. Knows nothing of engines or ceilings.

`optimal_sizes` is exact; `evenly_sampled` is vllm-ascend's rule, kept to compare with.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

from oproj_pass.capture.histogram import Histogram


def evenly_sampled(sizes: Sequence[int], budget: int) -> tuple[int, ...]:
    """At most `budget` of the ascending `sizes`, evenly spaced in the list, first and last kept.

    A budget of 1 keeps the last only. This is what vllm-ascend did when graphs outgrew device streams.
    """
    if budget >= len(sizes):
        return tuple(sizes)
    if budget == 1:
        return (sizes[-1],)
    last = len(sizes) - 1
    return tuple(sizes[round(i * last / (budget - 1))] for i in range(budget))


def optimal_sizes(candidates: Sequence[int], histogram: Histogram, budget: int) -> tuple[int, ...]:
    """At most `budget` of the ascending `candidates` with the least expected padding under `histogram`.

    The largest candidate is always kept, and with a budget of 2 or more the smallest too. Steps above the
    largest candidate run eager and weigh nothing. No size is returned that saves no padding.

    Exact: weights become integers before any sum. A step pads to the next size, so a layer of the dynamic
    program (best plan of k sizes ending at candidate j) is the lower envelope of one line per previous size.
    O(n log n + budget * n) for n candidates of positive weight.
    """
    if budget == 1 or len(candidates) == 1:
        return (candidates[-1],)
    sizes, weights = _weighted(candidates, histogram)
    before = list(accumulate(weights))
    tokens = list(accumulate(weight * size for weight, size in zip(weights, sizes, strict=True)))
    last = len(sizes) - 1

    # padding[j]: least padding of all steps up to sizes[j], with sizes[j] the largest of k captured sizes.
    padding: list[int | None] = [0] + [None] * last
    layers: list[list[int]] = []
    while len(layers) + 1 < budget and padding[last] != 0:
        padding, previous = _add_size(padding, sizes, before, tokens)
        layers.append(previous)
    return _trace(sizes, layers)


def _weighted(candidates: Sequence[int], histogram: Histogram) -> tuple[list[int], list[int]]:
    """The candidates worth capturing and, for each, the integer weight of the steps that need at least it."""
    exact = {step: Fraction(weight) for step, weight in histogram.items() if step <= candidates[-1]}
    scale = math.lcm(*(weight.denominator for weight in exact.values()))
    weights = [0] * len(candidates)
    for step, weight in exact.items():
        weights[bisect_left(candidates, step)] += int(weight * scale)
    ends = (0, len(candidates) - 1)
    kept = [i for i, weight in enumerate(weights) if weight or i in ends]
    return [candidates[i] for i in kept], [weights[i] for i in kept]


def _add_size(
    padding: list[int | None], sizes: list[int], before: list[int], tokens: list[int]
) -> tuple[list[int | None], list[int]]:
    """Plans of one more size: their padding by last size, and the size before it (both by index).

    With i the previous size, j pads sizes[j] * (before[j] - before[i]) - (tokens[j] - tokens[i]) more, so
    i competes as the line with slope -before[i] and intercept padding[i] + tokens[i] at x = sizes[j].
    """
    result: list[int | None] = [None] * len(sizes)
    previous = [-1] * len(sizes)
    lines: list[tuple[int, int, int]] = []  # slope, intercept, index: the lower envelope from `front` on
    front = 0
    for j in range(1, len(sizes)):
        known = padding[j - 1]
        if known is not None:
            line = (-before[j - 1], known + tokens[j - 1], j - 1)
            while len(lines) - front >= 2 and _hidden(lines[-2], lines[-1], line):
                lines.pop()
            lines.append(line)
        while len(lines) - front >= 2 and _at(lines[front + 1], sizes[j]) <= _at(lines[front], sizes[j]):
            front += 1
        if len(lines) > front:
            result[j] = sizes[j] * before[j] - tokens[j] + _at(lines[front], sizes[j])
            previous[j] = lines[front][2]
    return result, previous


def _at(line: tuple[int, int, int], x: int) -> int:
    return line[0] * x + line[1]


def _hidden(left: tuple[int, int, int], middle: tuple[int, int, int], right: tuple[int, int, int]) -> bool:
    """Whether `middle` is nowhere below both neighbours; slopes descend from left to right."""
    return (right[1] - left[1]) * (left[0] - middle[0]) <= (middle[1] - left[1]) * (left[0] - right[0])


def _trace(sizes: list[int], layers: list[list[int]]) -> tuple[int, ...]:
    chosen = [len(sizes) - 1]
    for previous in reversed(layers):
        chosen.append(previous[chosen[-1]])
    return tuple(sizes[i] for i in reversed(chosen))
