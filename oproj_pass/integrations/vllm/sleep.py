"""Refuses a sleep from which output projections that were loaded by slice would not come back.

They lie in vLLM's pool of weights, since they were allocated while the model was loaded. Level 1 copies them
to the host, and waking up brings them back to the addresses that graphs read. Level 2 throws them away, for
new weights to be loaded after it, which ``reload`` refuses. What the backend cut afterwards, in the profile
run, lies outside of the pool: it stays where it is at both levels, and takes new weights in place.

Decided where the engine is asked, before it pauses, and again in its worker, which may be asked directly.
"""

from collections.abc import Callable
from typing import Any

from vllm.v1.engine.core import EngineCore
from vllm.v1.worker.worker_base import WorkerWrapperBase

from oproj_pass.errors import ConfigError
from oproj_pass.integrations.vllm.hooks import FIRST_CALL, wrap
from oproj_pass.integrations.vllm.metrics import ENGINE
from oproj_pass.integrations.vllm.reload import is_loaded_by_slice

_DISCARDING = 2
_WEIGHTS = "weights"


def install() -> None:
    """Wrap the engine's sleep, and a worker's first call."""
    wrap(EngineCore, "sleep", _pausing)
    wrap(WorkerWrapperBase, FIRST_CALL, _equipping)


def _pausing(original: Callable[..., Any]) -> Callable[..., Any]:
    def sleep(self: Any, level: int = 1, *args: Any, **kwargs: Any) -> Any:
        if level >= _DISCARDING:
            _require_reloadable(self.vllm_config, f"sleep at level {level}")
        return original(self, level, *args, **kwargs)

    return sleep


def _equipping(original: Callable[..., None]) -> Callable[..., None]:
    def init_device(self: Any) -> None:
        if is_loaded_by_slice(self.vllm_config):
            _guard(self.worker, "sleep", self.vllm_config, lambda level=1: level >= _DISCARDING)
            _guard(self.worker, "discard", self.vllm_config, lambda tags: _WEIGHTS in tags)
        original(self)

    return init_device


def _guard(worker: Any, name: str, vllm_config: Any, loses_weights: Callable[..., bool]) -> None:
    method = getattr(worker, name, None)
    if method is None:
        return

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if loses_weights(*args, **kwargs):
            _require_reloadable(vllm_config, f"{name} in a worker")
        return method(*args, **kwargs)

    setattr(worker, name, guarded)


def _require_reloadable(vllm_config: Any, what: str) -> None:
    if not is_loaded_by_slice(vllm_config):
        return
    ENGINE.write_for(vllm_config, str(vllm_config.parallel_config.data_parallel_index))
    ENGINE.refuse("sleep")
    raise ConfigError(
        f"{what}: this engine loaded its output projections by slice, and vLLM would throw the slices away "
        "and could load no others into the graphs that read them. Sleep at level 1, or set "
        "additional_config.oproj_pass.load_sharded to false, with which new weights are taken after waking "
        "up. Nothing changed."
    )
