"""Draws the page's plots as inline SVG: lines over tokens, and bars. Colour lives in the style sheet."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oproj_pass.passes.diff.markup import Markup, element

__all__ = ["Bar", "Line", "bar_plot", "line_plot"]

_WIDTH, _HEIGHT = 520.0, 280.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 58.0, 16.0, 46.0
_LABEL_GAP = 15.0
_Scale = Callable[[float], float]


@dataclass(frozen=True)
class Line:
    """One series: its label, its class number, points of (tokens, value), and bounds where it has a range."""

    label: str
    number: int
    points: Sequence[tuple[int, float]]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Bar:
    """One bar: what is under it, its parts from the bottom (class number, value), and itself in words."""

    label: str
    parts: Sequence[tuple[int, float]]
    title: str
    value: str = ""


def line_plot(lines: Sequence[Line], *, unit: str, name: str) -> Markup:
    """Values over tokens, on a logarithmic axis of tokens; 0 is a line of its own."""
    values = [value for line in lines for _, value in line.points] + [0.0]
    ticks = _ticks(min(values), max(values))
    tokens = sorted({count for line in lines for count, _ in line.points})
    span = math.log2(tokens[-1] / tokens[0]) or 1.0

    def x(count: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log2(count / tokens[0]) / span

    def y(value: float) -> float:
        return _vertical(value, ticks)

    shown = [count for count in tokens if count & (count - 1) == 0]
    axis = [
        *_grid(ticks, unit, _WIDTH - _RIGHT),
        *(_text(x(count), _HEIGHT - 24, str(count), "tick") for count in shown),
    ]
    axis.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, "tokens of a rank's step", "axis"))
    bands = [_band(line, x, y) for line in lines if line.low]
    return _svg(name, _WIDTH, *axis, *bands, *(_line(line, x, y) for line in lines), *_line_labels(lines, y))


def bar_plot(bars: Sequence[Bar], *, unit: str, name: str, width: float = _WIDTH) -> Markup:
    """Stacked bars from 0 up; every label is shown that has room."""
    ticks = _ticks(0.0, max(sum(value for _, value in bar.parts) for bar in bars))
    room = (width - _LEFT - 8) / len(bars)
    every = max(math.ceil(26 / room), 1)
    drawn = []
    for index, bar in enumerate(bars):
        centre = _LEFT + room * (index + 0.5)
        drawn.append(_bar(bar, centre, min(room * 0.7, 90.0), ticks))
        if index % every == 0:
            drawn.append(_text(centre, _HEIGHT - 24, bar.label, "tick"))
    return _svg(name, width, *_grid(ticks, unit, width - 8), *drawn)


def _bar(bar: Bar, centre: float, width: float, ticks: Sequence[float]) -> Markup:
    total, parts = 0.0, []
    for number, value in bar.parts:
        top, bottom = _vertical(total + value, ticks), _vertical(total, ticks)
        frame = {
            "x": _at(centre - width / 2),
            "y": _at(top),
            "width": _at(width),
            "height": _at(bottom - top),
        }
        parts.append(element("rect", {"class": f"fill s{number}", **frame}))
        total += value
    label = _text(centre, _vertical(total, ticks) - 5, bar.value, "value") if bar.value else Markup("")
    return element("g", None, element("title", None, bar.title), *parts, label)


def _line(line: Line, x: _Scale, y: _Scale) -> Markup:
    points = [(x(count), y(value)) for count, value in line.points]
    path = "M" + "L".join(f"{_at(across)} {_at(down)}" for across, down in points)
    dots = [
        element(
            "circle",
            {"class": f"fill s{line.number}", "cx": _at(across), "cy": _at(down), "r": "3"},
            element("title", None, f"{line.label}, {count} tokens: {value:+.2f} ms"),
        )
        for (across, down), (count, value) in zip(points, line.points, strict=True)
    ]
    return element("g", None, element("path", {"class": f"stroke s{line.number}", "d": path}), *dots)


def _band(line: Line, x: _Scale, y: _Scale) -> Markup:
    counts = [count for count, _ in line.points]
    upper = [(x(count), y(value)) for count, value in zip(counts, line.high, strict=True)]
    lower = [(x(count), y(value)) for count, value in zip(counts, line.low, strict=True)]
    points = " ".join(f"{_at(across)},{_at(down)}" for across, down in [*upper, *reversed(lower)])
    return element("polygon", {"class": f"band s{line.number}", "points": points})


def _line_labels(lines: Sequence[Line], y: _Scale) -> list[Markup]:
    """Each line's label at its end, pushed apart where two ends are close."""
    placed, last = [], -math.inf
    for line in sorted(lines, key=lambda line: -line.points[-1][1]):
        last = max(y(line.points[-1][1]) + 4, last + _LABEL_GAP)
        place = {"x": _at(_WIDTH - _RIGHT + 6), "y": _at(last), "class": f"label s{line.number}"}
        placed.append(element("text", place, line.label))
    return placed


def _grid(ticks: Sequence[float], unit: str, right: float) -> list[Markup]:
    drawn = []
    for tick in ticks:
        place = {"x1": _at(_LEFT), "x2": _at(right), "y1": _at(_vertical(tick, ticks))}
        kind = "zero" if tick == 0 else "grid"
        drawn.append(element("line", {"class": kind, **place, "y2": place["y1"]}))
        label = f"{tick:g} {unit}" if tick == ticks[-1] else f"{tick:g}"
        drawn.append(
            element(
                "text",
                {"class": "tick end", "x": _at(_LEFT - 6), "y": _at(_vertical(tick, ticks) + 4)},
                label,
            )
        )
    return drawn


def _ticks(low: float, high: float) -> list[float]:
    """About six round steps that hold both ends and 0."""
    low, high = min(low, 0.0), max(high, 0.0)
    rough = (high - low or 1.0) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough)
    return [
        round(index * step, 10) for index in range(math.floor(low / step), math.ceil(high / step) + 1)
    ] or [0.0, step]


def _vertical(value: float, ticks: Sequence[float]) -> float:
    inside = min(max(value, ticks[0]), ticks[-1])
    share = (inside - ticks[0]) / (ticks[-1] - ticks[0])
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share


def _text(x: float, y: float, text: str, kind: str) -> Markup:
    return element("text", {"class": kind, "x": _at(x), "y": _at(y)}, text)


def _svg(name: str, width: float, *parts: Markup) -> Markup:
    attributes = {
        "class": "broad" if width > _WIDTH else "plot",
        "xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width:g} {_HEIGHT:g}", "role": "img",
        "aria-label": name,
    }  # fmt: skip
    return element("svg", attributes, *parts)


def _at(value: float) -> str:
    return f"{value:.1f}"
