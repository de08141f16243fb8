"""Files of Prometheus' multi-process mode that carry an engine's numbers to whoever serves ``/metrics``.

vLLM with several API servers sets ``PROMETHEUS_MULTIPROC_DIR`` for its processes and serves what lies in it;
so can anybody. With one, it serves the registry of its own process: for that a folder is made while the
engine is configured, which the registry reads, and which the processes started later find by its variable.

The files are named apart from those that ``prometheus_client`` keeps itself, since each writer maps its own.
"""

import atexit
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path

from prometheus_client import REGISTRY
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector

from oproj_pass.metrics.counts import BOUNDS
from oproj_pass.metrics.series import AGREEMENT, SERIES, Histogram, Measured, Series, own_labels

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "OPROJ_METRICS_DIR"
PROMETHEUS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
PREFIX = "vllm:oproj_"
_LABELS = ("model_name", "engine")  # as vLLM's own series have
_BOUNDS, _SUM = (*map(str, BOUNDS), "+Inf"), "sum"
_PREFIX_OF_FILE = {"counter": "counter", "gauge": "gauge_mostrecent", "histogram": "histogram"}


def share_folder() -> None:
    """Let this process serve what the engines write that it starts from now on; once is enough."""
    if os.environ.get(PROMETHEUS_VARIABLE) or os.environ.get(FOLDER_VARIABLE):
        return
    folder = tempfile.mkdtemp(prefix="oproj_metrics_")
    os.environ[FOLDER_VARIABLE] = folder
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    MultiProcessCollector(REGISTRY, path=folder)


class MetricsFiles:
    """The files of one process, one for each kind of series. A write takes about 20 us on a CPU."""

    def __init__(self, folder: Path, model_name: str, engine: str) -> None:
        self._labels = [model_name, engine]
        self._files = {
            kind: MmapedDict(str(folder / f"{prefix}_oproj-{os.getpid()}.db"))
            for kind, prefix in _PREFIX_OF_FILE.items()
        }
        self._keys: dict[tuple[str, str], str] = {}
        self._written: dict[str, float] = {}

    @classmethod
    def of(cls, model_name: str, engine: str) -> "MetricsFiles | None":
        """The files in the folder that this process was given; None, with a warning, where it has none."""
        folder = os.environ.get(PROMETHEUS_VARIABLE) or os.environ.get(FOLDER_VARIABLE)
        try:
            if not folder:
                raise FileNotFoundError(f"neither {PROMETHEUS_VARIABLE} nor {FOLDER_VARIABLE} is set here")
            return cls(Path(folder), model_name, engine)
        except OSError as error:
            logger.warning(
                "engine %s: the series %s… are not served: %s. Set %s to one empty folder for all processes "
                "of this server",
                engine, PREFIX, error, PROMETHEUS_VARIABLE,
            )  # fmt: skip
            return None

    def write(self, measured: Measured) -> None:
        """Write what changed."""
        for series in SERIES:
            for label, value in series.values(measured).items():
                self._write(self._files[series.kind], self._key(series, label), value)
        durations, histograms = AGREEMENT.durations(measured), self._files["histogram"]
        for bound, count in zip(_BOUNDS, durations.counts, strict=True):
            self._write(histograms, self._key(AGREEMENT, bound), count)
        self._write(histograms, self._key(AGREEMENT, _SUM), durations.seconds)

    def _write(self, file: MmapedDict, key: str, value: float) -> None:
        if self._written.get(key) != value:
            self._written[key] = value
            file.write_value(key, value, time.time())

    def _key(self, series: Series | Histogram, label: str) -> str:
        """What the value at ``label`` of a series is called in its file."""
        if (key := self._keys.get((series.name, label))) is None:
            family, name, own = _names(series, label)
            values = [*self._labels, *([label] if own else [])]
            key = mmap_key(PREFIX + family, PREFIX + name, [*_LABELS, *own], values, series.documentation)
            self._keys[series.name, label] = key
        return key


def _names(series: Series | Histogram, label: str) -> tuple[str, str, tuple[str, ...]]:
    """Names of the family and of the sample, and of its own labels, as Prometheus' files have them."""
    if isinstance(series, Histogram):
        return (
            series.name,
            *((f"{series.name}_sum", ()) if label == _SUM else (f"{series.name}_bucket", ("le",))),
        )
    return series.name, series.name + ("_total" if series.kind == "counter" else ""), own_labels(series)
