"""What the steps of an engine came to, counted in its worker: replays, idle steps, refusals, bytes, waits.

The worker is not the process that serves ``/metrics``, and a refused step ends it, so numbers are written
after each step into files that outlive it (``metrics_files``). Only where a size is on, and of that worker's
own calls.
"""

import functools
import importlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from vllm.config import CUDAGraphMode
from vllm.platforms import current_platform
from vllm.v1.worker.worker_base import WorkerWrapperBase

from oproj_pass.backend.binding import ShardedGraph
from oproj_pass.errors import EagerStepError
from oproj_pass.integrations.vllm.hooks import FIRST_CALL, follow, wrap
from oproj_pass.integrations.vllm.metrics_files import MetricsFiles
from oproj_pass.integrations.vllm.settings import Settings, settings_of
from oproj_pass.metrics.counts import StepCounts
from oproj_pass.metrics.series import Measured
from oproj_pass.weights.memory_report import shard_report

# Where ranks agree on a step, by the release that does so there; of what is not loaded nothing is timed.
_AGREEING = (
    ("vllm.v1.worker.gpu_model_runner", "coordinate_batch_across_dp"),
    ("vllm.v1.worker.gpu.dp_utils", "sync_cudagraph_and_dp_padding"),
    ("vllm_ascend.worker.model_runner_v1", "NPUModelRunner._sync_metadata_across_dp"),
)
_API_SERVER = "api_server"


class SentBytes:
    """What a call of one of the engine's graphs sends, by its rows; nothing before it is compiled."""

    def __init__(self) -> None:
        self._of_rows: Callable[[int], int | None] = lambda rows: 0

    def learn(self, compiled: Any) -> None:
        """The graph was compiled."""
        if isinstance(compiled, ShardedGraph):
            self._of_rows = compiled.traffic.of_rows if compiled.traffic else lambda rows: None

    def of_rows(self, rows: int | None) -> int | None:
        """Bytes of a call with so many rows; None where they are not known."""
        return None if rows is None else self._of_rows(rows)


Context = Mapping[str, Any]  # of vLLM's forward, by the names of its parameters


class EngineSteps:
    """The steps of this process's engine, and of its graphs what they send."""

    def __init__(self) -> None:
        self.measured = Measured(StepCounts())
        self.model, self.head = SentBytes(), SentBytes()
        self._files: MetricsFiles | None = None
        self._runs = False
        self._context: Context | None = None

    def write_for(self, vllm_config: Any, engine: str) -> None:
        """Write from now on, for the engine of that number."""
        if self._files is None:
            self._files = MetricsFiles.of(vllm_config.model_config.served_model_name, engine)

    def weigh(self, model: Any, sizes: dict[str, int]) -> None:
        """Note what sharding freed of the model."""
        freed = {role: report.freed_nbytes for role, report in shard_report(model).by_role.items()}
        self.measured = Measured(self.measured.counts, sizes, freed)
        self.write()

    @contextmanager
    def step(self, *, idle: bool) -> Iterator[None]:
        """A step of the worker runs inside."""
        self._runs, self._context = True, None
        try:
            yield
        except Exception as error:
            self.refuse(_reason(error, self._context))
            raise
        finally:
            self._runs = False
        context: Context = self._context or {}  # model runner V2 replays a full graph without a forward
        kind = "eager" if context.get("cudagraph_runtime_mode") == CUDAGraphMode.NONE else "replayed"
        self.measured.counts.add_step(kind, self.model.of_rows(context.get("num_tokens")), idle=idle)
        self.write()

    def forward(self, context: Context) -> None:
        """The model is about to run. In a step the first time counts: a draft's own forwards come after."""
        if self._runs and self._context is None:
            self._context = context

    def agreed(self, seconds: float) -> None:
        """The ranks have agreed on a step."""
        if self._runs:
            self.measured.counts.agreements.add(seconds)

    def called_head(self, rows: int) -> None:
        """The LM head ran."""
        if self._runs:
            self.measured.counts.add_sent(self.head.of_rows(rows))

    def refuse(self, reason: str) -> None:
        """Something was refused."""
        self.measured.counts.refusals[reason] += 1
        self.write()

    def write(self) -> None:
        """Show what is new to whoever serves the numbers."""
        if self._files is not None:
            self._files.write(self.measured)


ENGINE = EngineSteps()  # of the process, in which one worker runs: graphs and hooks meet nowhere else


def install() -> None:
    """Wrap a worker's first call, and the hook before each forward."""
    wrap(WorkerWrapperBase, FIRST_CALL, _equipping)
    wrap(type(current_platform), "set_additional_forward_context", _observing)


def refused_by_api_server(vllm_config: Any, reason: str) -> None:
    """Count a request that was refused when it arrived."""
    ENGINE.write_for(vllm_config, _API_SERVER)
    ENGINE.refuse(reason)


def _equipping(original: Callable[..., None]) -> Callable[..., None]:
    def init_device(self: Any) -> None:
        original(self)  # in which the LM head comes to be called after a dummy batch: part of that step
        settings = settings_of(self.vllm_config)
        if settings is not None:
            ENGINE.write_for(self.vllm_config, str(self.vllm_config.parallel_config.data_parallel_index))
            _equip(self.worker, settings)

    return init_device


def _equip(worker: Any, settings: Settings) -> None:
    sizes = {role: size for role, size in settings.sizes.items() if size}
    _surround(worker, "execute_model", _is_real)
    _surround(worker, "execute_dummy_batch", lambda *_, **__: True)
    follow(worker, "load_model", _time_agreements)
    follow(worker, "initialize_from_config", lambda: ENGINE.weigh(worker.get_model(), sizes))


def _is_real(scheduler_output: Any, *_: Any, **__: Any) -> bool:
    return bool(scheduler_output.total_num_scheduled_tokens > 0)


def _surround(worker: Any, name: str, is_step: Callable[..., bool]) -> None:
    method, idle = getattr(worker, name), name == "execute_dummy_batch"

    @functools.wraps(method)
    def counted(*args: Any, **kwargs: Any) -> Any:
        if not is_step(*args, **kwargs):
            return method(*args, **kwargs)
        with ENGINE.step(idle=idle):
            return method(*args, **kwargs)

    setattr(worker, name, counted)


def _observing(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_additional_forward_context(cls: type, *args: Any, **context: Any) -> Any:
        ENGINE.forward(context)
        return original(cls, *args, **context)

    return set_additional_forward_context


def _time_agreements() -> None:
    for module, name in _AGREEING:
        if module in sys.modules:
            owner_name, _, function = name.rpartition(".")
            loaded = importlib.import_module(module)
            wrap(getattr(loaded, owner_name) if owner_name else loaded, function, _timed)


def _timed(original: Callable[..., Any]) -> Callable[..., Any]:
    def agree(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        result = original(*args, **kwargs)
        ENGINE.agreed(time.perf_counter() - began)
        return result

    return agree


def _reason(error: Exception, context: Context | None) -> str:
    if not isinstance(error, EagerStepError):
        return "failed"
    largest = context["vllm_config"].compilation_config.max_cudagraph_capture_size if context else None
    if context is None or not largest:  # no graphs, so no step is too large for them
        return "cannot_replay"
    across, own = context.get("num_tokens_across_dp"), context.get("num_tokens") or 0
    return "oversize" if (own if across is None else int(across.max())) > largest else "cannot_replay"
