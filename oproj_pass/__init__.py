"""Shards attention output projections across data-parallel decode ranks, as a graph pass.

    model = torch.compile(model, backend="oproj_npu", options={"oproj_tensor_parallel_size": 8})

The backend is found by its name and needs no import of this package. Names are loaded on first use, so that
planning and checking, which need no tensors, do not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from oproj_pass.errors import (
    ConfigError,
    EagerStepError,
    GroupMismatchError,
    OProjError,
    SiteMismatchError,
    TorchVersionError,
    WeightReleasedError,
)
from oproj_pass.torch_internals import require_internals

if TYPE_CHECKING:
    from oproj_pass.backend.context import context_parallel
    from oproj_pass.config import OProjConfig
    from oproj_pass.deployment import Deployment, DeploymentReport, check_deployment
    from oproj_pass.explanation import ExplainReport, explain
    from oproj_pass.loading import load_sharded
    from oproj_pass.runtime import DecodeRunner
    from oproj_pass.weights.memory_report import ShardReport, shard_report
    from oproj_pass.weights.state_dict import full_state_dict

    __version__: str

_MODULES = {
    "DecodeRunner": "runtime",
    "Deployment": "deployment",
    "DeploymentReport": "deployment",
    "ExplainReport": "explanation",
    "OProjConfig": "config",
    "ShardReport": "weights.memory_report",
    "check_deployment": "deployment",
    "context_parallel": "backend.context",
    "explain": "explanation",
    "full_state_dict": "weights.state_dict",
    "load_sharded": "loading",
    "shard_report": "weights.memory_report",
}

_WITHOUT_TORCH = {"deployment"}

__all__ = [
    "ConfigError",
    "DecodeRunner",
    "Deployment",
    "DeploymentReport",
    "EagerStepError",
    "ExplainReport",
    "GroupMismatchError",
    "OProjConfig",
    "OProjError",
    "ShardReport",
    "SiteMismatchError",
    "TorchVersionError",
    "WeightReleasedError",
    "check_deployment",
    "context_parallel",
    "explain",
    "full_state_dict",
    "load_sharded",
    "shard_report",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("oproj-pass")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES[name]
    if module not in _WITHOUT_TORCH:
        require_internals(__name__)
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
