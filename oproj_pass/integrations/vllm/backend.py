"""Puts the pass in front of whatever compiles vLLM's graph: another Dynamo backend, or vLLM's own (mode 3).

Decides the backend's options from the engine's configuration, and that its graphs are not stored: vLLM
compiles ahead of time and would write them to disk, where they would outlive the groups they name.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch._dynamo.aot_compile_types import SerializableCallable
from torch.fx import GraphModule
from vllm.compilation import backends
from vllm.config import CompilationConfig
from vllm.platforms import current_platform

from oproj_pass.backend import oproj_npu
from oproj_pass.integrations.vllm.hooks import wrap
from oproj_pass.integrations.vllm.ranks import process_group_of
from oproj_pass.integrations.vllm.settings import BACKEND, Settings, settings_of

# vLLM captures the graphs itself, so npugraph_ex must not; both options are as vllm-ascend sets them.
_ON_NPU = {
    "inner_backend": "npugraph_ex",
    "inner_options": {"force_eager": True, "inplace_pass": False},
}
_MODEL = "backbone"  # vLLM's tag of the model itself; drafts and encoders have others


def install() -> None:
    """Wrap the choice of the compiler."""
    wrap(CompilationConfig, "init_backend", _choosing)


def _choosing(original: Callable[..., Any]) -> Callable[..., Any]:
    def init_backend(self: Any, vllm_config: Any, prefix: str = "", is_encoder: bool = False) -> Any:
        chosen = original(self, vllm_config, prefix=prefix, is_encoder=is_encoder)
        settings = settings_of(vllm_config)
        if settings is None or is_encoder or backends.model_tag != _MODEL:
            return Sharding(_compiler() | {"oproj_tensor_parallel_size": 0}) if chosen == BACKEND else chosen
        return Sharding(options_of(settings, chosen))

    return init_backend


def options_of(settings: Settings, chosen: Any) -> dict[str, Any]:
    """The options of ``oproj_npu`` that compiles with ``chosen`` what it has rewritten."""
    return {
        **_compiler(),
        **settings.options,
        **({} if chosen == BACKEND else {"inner_backend": chosen, "inner_options": {}}),
        "oproj_tensor_parallel_size": settings.size,
        "group": process_group_of(settings) if settings.size > 1 else None,
        "capacity": settings.capacity,
        "agree_on_rows": False,  # vLLM's data-parallel ranks pad to one count, and ``guard`` refuses the rest
    }


def _compiler() -> dict[str, Any]:
    return dict(_ON_NPU) if current_platform.device_type == "npu" else {}


class Sharding:
    """The Dynamo backend that vLLM compiles with: ``oproj_npu`` with the engine's options."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any], **_: Any) -> "NotStored":
        """Compile one graph."""
        return NotStored(oproj_npu(gm, example_inputs, options=self.options))


class NotStored(SerializableCallable):
    """A compiled graph that declines to be written to disk; vLLM says so in its log and goes on."""

    def __init__(self, compiled: Callable[..., Any]) -> None:
        self.compiled = compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph."""
        return self.compiled(*args, **kwargs)

    @classmethod
    def serialize_compile_artifacts(cls, fn: Any) -> bytes:
        """Refuse: the graph holds this process's groups and shards."""
        raise NotImplementedError("graphs with sharded projections are compiled anew by every process")

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> Any:
        """Refuse: nothing was written."""
        raise NotImplementedError("graphs with sharded projections are compiled anew by every process")
