"""Serves the series of decode runners to Prometheus, from the process that they run in.

A collector reads the runners' plain numbers when it is scraped; a step does nothing for it.
``prometheus_client`` is an extra (``oproj-pass[metrics]``).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import nn

from oproj_pass.errors import ConfigError
from oproj_pass.metrics.counts import BOUNDS
from oproj_pass.metrics.series import AGREEMENT, SERIES, Measured, own_labels, samples
from oproj_pass.weights.memory_report import shard_report

if TYPE_CHECKING:
    from oproj_pass.runtime.runner import DecodeRunner

_LABELS = ("runner",)
_PREFIX = "oproj_"


def export_metrics(
    *runners: "DecodeRunner", model: nn.Module | None = None, registry: Any = None
) -> "RunnerCollector":
    """Let ``registry`` (Prometheus' default one unless given) serve what the runners' steps come to.

    Series are named ``oproj_…`` and labelled with the runner's name. With ``model``, also the bytes that
    sharding freed of it and the ranks that share them, as they are when it is scraped.

    Returns the collector, for ``registry.unregister``. Not for a registry of Prometheus' multi-process mode,
    which reads files. Raises ``ConfigError`` without ``prometheus_client``, or for two runners of one name.
    """
    try:
        from prometheus_client import REGISTRY  # noqa: PLC0415  (an extra)
    except ImportError as missing:
        raise ConfigError(
            "export_metrics needs prometheus_client: pip install 'oproj-pass[metrics]'"
        ) from missing
    collector = RunnerCollector(runners, model)
    (REGISTRY if registry is None else registry).register(collector)
    return collector


class RunnerCollector:
    """A collector of ``prometheus_client`` over some runners."""

    def __init__(self, runners: tuple["DecodeRunner", ...], model: nn.Module | None) -> None:
        names = [runner.name for runner in runners]
        if len(set(names)) < len(names):
            raise ConfigError(
                f"runners named {names} cannot be told apart, required: a `name` of its own for each"
            )
        self._runners, self._model = runners, model

    def collect(self) -> Iterator[Any]:
        """The families of all series."""
        from prometheus_client import core  # noqa: PLC0415  (an extra)

        families = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
        measured = {runner.name: self._measured(runner) for runner in self._runners}
        for series in SERIES:
            labels = (*_LABELS, *own_labels(series))
            family = families[series.kind](_PREFIX + series.name, series.documentation, labels=labels)
            for name, found in measured.items():
                for own, value in samples(series, found):
                    family.add_metric((name, *own), value)
            yield family
        histogram = core.HistogramMetricFamily(
            _PREFIX + AGREEMENT.name, AGREEMENT.documentation, labels=_LABELS
        )
        for name, found in measured.items():
            durations = AGREEMENT.durations(found)
            buckets = zip((*map(str, BOUNDS), "+Inf"), durations.cumulative, strict=True)
            histogram.add_metric((name,), list(buckets), durations.seconds)
        yield histogram

    def _measured(self, runner: "DecodeRunner") -> Measured:
        if self._model is None:
            return Measured(runner.counts)
        by_role = shard_report(self._model).by_role
        freed = {role: report.freed_nbytes for role, report in by_role.items()}
        sizes = {role: report.weights[0].ranks for role, report in by_role.items()}
        return Measured(runner.counts, sizes, freed)
