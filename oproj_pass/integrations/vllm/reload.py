"""Refuses to load new weights into an engine whose output projections were loaded by slice, before it begins.

vLLM loads such a layer into parameters made anew, in the shape of the slice, which no compiled graph reads.
Weights that were loaded in full (``load_sharded`` false) are loaded again through the released parameters, of
which each rank takes its slice; a model's own ``load_weights`` fills those as well.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from vllm.v1.worker.worker_base import WorkerWrapperBase

from oproj_pass.errors import ConfigError
from oproj_pass.integrations.vllm.hooks import FIRST_CALL, wrap
from oproj_pass.integrations.vllm.metrics import ENGINE
from oproj_pass.integrations.vllm.settings import settings_of

# What a worker is asked to do when weights change under it.
_LOADING_AGAIN = ("reload_weights", "start_weight_update")


def install() -> None:
    """Wrap a worker's first call."""
    wrap(WorkerWrapperBase, FIRST_CALL, _equipping)


def is_loaded_by_slice(vllm_config: Any) -> bool:
    """Whether output projections of this engine loaded their slice only."""
    settings = settings_of(vllm_config)
    return settings is not None and settings.sizes["oproj"] > 1 and settings.load_sharded


def _equipping(original: Callable[..., None]) -> Callable[..., None]:
    def init_device(self: Any) -> None:
        if is_loaded_by_slice(self.vllm_config):
            for name in _LOADING_AGAIN:
                if hasattr(self.worker, name):
                    setattr(self.worker, name, _refusing(name))
        original(self)

    return init_device


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        ENGINE.refuse(name)
        raise ConfigError(
            f"{name}: this engine loaded its output projections by slice, and vLLM would load new weights "
            "past the shards that its graphs read. Set additional_config.oproj_pass.load_sharded to false, "
            "with which every rank takes its slice of new weights, or restart the engine. Nothing changed."
        )

    return refuse
