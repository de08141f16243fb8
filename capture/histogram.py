"""How often a decode step of each size occurs: observed, from a file, or uniform.

Decides which weights a plan is judged under. Leaves the choice of sizes alone.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from oproj_pass.capture.bounds import StepBound
from oproj_pass.errors import ConfigError

Histogram = Mapping[int, float]
"""Tokens of a step -> how often it occurs, as a count or any other non-negative weight."""


def uniform_histogram(bound: StepBound) -> Histogram:
    """Every reachable decode step once."""
    return dict.fromkeys(bound.reachable_steps(), 1)


def decode_histogram(histogram: Histogram, bound: StepBound) -> Histogram:
    """The part of `histogram` that can be decode steps under `bound`, ascending, without zero weights.

    Steps above the largest decode step are prefill or mixed steps, which no decode graph serves.

    Raises:
        ConfigError: a step or a weight is not a number of its kind, or no weight is left.
    """
    _check(histogram, "histogram")
    largest = bound.max_decode_tokens
    kept = {step: histogram[step] for step in sorted(histogram) if histogram[step] and step <= largest}
    if not kept:
        raise ConfigError(
            f"histogram: no step of 1 to {largest} tokens (the largest possible decode step) has a weight "
            f"above 0. Record the decode node's own steps, or check max_num_seqs"
        )
    return kept


def load_histogram(path: str | Path) -> Histogram:
    """Read observed step sizes.

    The file is a JSON object (tokens -> weight), a JSON list of observed sizes, or text with one observed
    size a line; blank lines are skipped. Steps of 0 tokens, a rank's idle ones, count for nothing: such a
    rank pads to its peers' size.

    Raises:
        ConfigError: the file cannot be read, is empty, or an entry is not a step size or weight.
    """
    path = Path(path)
    source = f"histogram file {path}"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: cannot be read as text: {error}") from error
    histogram = _from_json(text, source) if text.lstrip()[:1] in ("{", "[") else _from_lines(text, source)
    if not histogram:
        raise ConfigError(f"{source}: is empty; it must hold at least one step size")
    _check(histogram, source)
    return histogram


def _from_json(text: str, source: str) -> Histogram:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{source}: is not valid JSON: {error}") from error
    if isinstance(content, list):
        steps = ((entry, f"{source}, entry {number}") for number, entry in enumerate(content, 1))
        return Counter(_require_step(entry, where) for entry, where in steps if not _is_idle(entry))
    histogram = {_parse_step(key, source): weight for key, weight in content.items()}
    if len(histogram) != len(content):
        raise ConfigError(f"{source}: two keys name the same step; keys are {', '.join(map(repr, content))}")
    return {step: weight for step, weight in histogram.items() if not _is_idle(step)}


def _from_lines(text: str, source: str) -> Histogram:
    lines = ((line, f"{source}, line {number}") for number, line in enumerate(text.splitlines(), 1))
    steps = ((_parse_step(line, where), where) for line, where in lines if line.strip())
    return Counter(_require_step(step, where) for step, where in steps if not _is_idle(step))


def _is_idle(step: object) -> bool:
    return type(step) is int and step == 0


def _parse_step(text: str, source: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{source}: {text.strip()!r} is not a step size, an integer of tokens") from None


def _require_step(step: object, source: str) -> int:
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        raise ConfigError(f"{source}: step {step!r} must be a positive integer number of tokens")
    return step


def _check(histogram: Histogram, source: str) -> None:
    for step, weight in histogram.items():
        _require_step(step, source)
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise ConfigError(f"{source}: the weight of step {step} must be a number, got {weight!r}")
        if not math.isfinite(weight) or weight < 0:
            raise ConfigError(f"{source}: the weight of step {step} must be finite and >= 0, got {weight}")
