"""Interpolates measured times in the logarithms of their coordinates, where they are nearly straight.

Between points a time follows a power of each coordinate; beyond the last ones it goes on by the outermost
power, which for sizes far out is a fixed bandwidth.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence

__all__ = ["interpolate", "leave_one_out"]


def interpolate(grid: Sequence[Sequence[float]], values: Sequence[float], at: Sequence[float]) -> float:
    """The value at a point, from ``values`` on a ``grid`` of ascending coordinates, the last varying fastest.

    All coordinates and values are above 0. Along a coordinate with a single grid point nothing changes.
    """
    axis, *rest = grid
    stride = math.prod(len(coordinates) for coordinates in rest)
    if not rest:
        return _between(axis, values, at[0])
    low, high = _neighbours(axis, at[0])
    nearest = [interpolate(rest, values[i * stride : (i + 1) * stride], at[1:]) for i in (low, high)]
    return _between((axis[low], axis[high]), nearest, at[0]) if low != high else nearest[0]


def leave_one_out(coordinates: Sequence[float], values: Sequence[float]) -> list[float]:
    """For every inner point, how far the others' interpolation is from its value, as a fraction of it."""
    errors = []
    for i in range(1, len(coordinates) - 1):
        others = [*range(i), *range(i + 1, len(coordinates))]
        guess = interpolate([[coordinates[j] for j in others]], [values[j] for j in others], [coordinates[i]])
        errors.append(abs(guess / values[i] - 1))
    return errors


def _neighbours(axis: Sequence[float], at: float) -> tuple[int, int]:
    """The two grid points to interpolate between, or to extrapolate from."""
    if len(axis) == 1:
        return 0, 0
    high = min(max(bisect_right(axis, at), 1), len(axis) - 1)
    return high - 1, high


def _between(axis: Sequence[float], values: Sequence[float], at: float) -> float:
    low, high = _neighbours(axis, at)
    if low == high:
        return values[low]
    share = math.log(at / axis[low]) / math.log(axis[high] / axis[low])
    return float(values[low] * (values[high] / values[low]) ** share)
