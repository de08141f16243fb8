"""Refuses to load new weights into an engine whose output projections were loaded by slice, before it begins.

vLLM loads such a layer into parameters made anew, in the shape of the slice, which no compiled graph reads.
Weights that were loaded in full (``load_sharded`` false) are loaded again through the released parameters, of
which each rank takes its slice; a model's own ``load_weights`` fills those as well.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from vllm.v1.worker.worker_base import WorkerWrapperBase

from oproj_pass.errors import ConfigError
from oproj_pass.integrations.vllm.hooks import wrap
from oproj_pass.integrations.vllm.settings import settings_of

# What a worker is asked to do when weights change under it.
_LOADING_AGAIN = ("reload_weights", "start_weight_update")


def install() -> None:
    """Wrap the making of a worker."""
    wrap(WorkerWrapperBase, "init_worker", _equipping)


def _equipping(original: Callable[..., None]) -> Callable[..., None]:
    def init_worker(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        settings = settings_of(self.vllm_config)
        if settings is None or settings.sizes["oproj"] < 2 or not settings.load_sharded:
            return
        for name in _LOADING_AGAIN:
            if hasattr(self.worker, name):
                setattr(self.worker, name, _refusing(name))

    return init_worker


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise ConfigError(
            f"{name}: this engine loaded its output projections by slice, and vLLM would load new weights "
            "past the shards that its graphs read. Set additional_config.oproj_pass.load_sharded to false, "
            "with which every rank takes its slice of new weights, or restart the engine. Nothing changed."
        )

    return refuse
