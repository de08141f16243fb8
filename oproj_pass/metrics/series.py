"""The table of series: what Prometheus is told of steps and of sharded weights. One row each.

Decides names, types and labels. Who serves them, and from which process, is decided elsewhere.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import nan
from typing import Literal

from oproj_pass.metrics.counts import Durations, StepCounts


@dataclass(frozen=True)
class Measured:
    """What the series are read from: the steps, and by role over how many ranks and what was freed."""

    counts: StepCounts
    sizes: Mapping[str, int] = field(default_factory=dict)
    freed_nbytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Series:
    """One series: its values by that of its ``label``, if it has one.

    ``name``: without prefix, and for a counter without ``_total``.
    """

    name: str
    kind: Literal["counter", "gauge"]
    documentation: str
    values: Callable[[Measured], Mapping[str, float]]
    label: str | None = None


@dataclass(frozen=True)
class Histogram:
    """The same of durations, in seconds."""

    name: str
    documentation: str
    durations: Callable[[Measured], Durations]


SERIES = (
    Series(
        "steps", "counter",
        "Steps that ran, by how: replayed from a graph, eager, or wide (unsharded, weights gathered).",
        lambda measured: measured.counts.steps, "kind",
    ),
    Series(
        "idle_steps", "counter", "Steps in which this rank took part without requests, among those that ran.",
        lambda measured: {"": measured.counts.idle_steps},
    ),
    Series(
        "refusals", "counter", "What was refused, by reason: steps, requests and changes of weights.",
        lambda measured: measured.counts.refusals, "reason",
    ),
    Series(
        "sent_bytes", "counter",
        "Bytes that this rank sent to others for its sharded weights; NaN where that is not known.",
        lambda measured: {"": nan if (sent := measured.counts.sent_nbytes) is None else sent},
    ),
    Series(
        "freed_bytes", "gauge", "Bytes of full weights that this rank does not hold, by role.",
        lambda measured: measured.freed_nbytes, "role",
    ),
    Series(
        "tensor_parallel_size", "gauge", "Ranks that share the weights of a role.",
        lambda measured: measured.sizes, "role",
    ),
)  # fmt: skip

AGREEMENT = Histogram(
    "agreement_seconds",
    "How long the ranks took to agree on a step, mostly waiting for the slowest.",
    lambda measured: measured.counts.agreements,
)


def samples(series: Series, measured: Measured) -> Iterator[tuple[tuple[str, ...], float]]:
    """The values of a series, each with the values of its own labels."""
    for label, value in series.values(measured).items():
        yield (() if series.label is None else (label,)), value


def own_labels(series: Series) -> tuple[str, ...]:
    """The names of the labels that a series has besides those of its reporter."""
    return () if series.label is None else (series.label,)
