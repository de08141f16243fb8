"""Puts the pass in front of whatever compiles vLLM's graph: another Dynamo backend, or vLLM's own (mode 3).

Decides the backend's options from the engine's configuration, and that its graphs are not stored: vLLM
compiles ahead of time and would write them to disk, where they would outlive the groups they name.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch._dynamo.aot_compile_types import SerializableCallable
from torch.fx import GraphModule
from vllm.compilation import backends
from vllm.config import CompilationConfig
from vllm.platforms import current_platform

from oproj_pass.backend import oproj_npu
from oproj_pass.integrations.vllm.hooks import wrap
from oproj_pass.integrations.vllm.metrics import ENGINE, SentBytes
from oproj_pass.integrations.vllm.ranks import process_group_of
from oproj_pass.integrations.vllm.settings import BACKEND, Settings, settings_of
from oproj_pass.passes.sites.options import ROLE_TITLES, size_option

# vLLM captures the graphs itself, so npugraph_ex must not; both options are as vllm-ascend sets them.
_ON_NPU = {
    "inner_backend": "npugraph_ex",
    "inner_options": {"force_eager": True, "inplace_pass": False},
}
_BY_ROLE = ("include", "exclude", "expected_sites")
_MODEL = "backbone"  # vLLM's tag of the model itself; drafts and encoders have others


def install() -> None:
    """Wrap the choice of the compiler."""
    wrap(CompilationConfig, "init_backend", _choosing)


def _choosing(original: Callable[..., Any]) -> Callable[..., Any]:
    def init_backend(self: Any, vllm_config: Any, prefix: str = "", is_encoder: bool = False) -> Any:
        chosen = original(self, vllm_config, prefix=prefix, is_encoder=is_encoder)
        settings = settings_of(vllm_config)
        is_model = not is_encoder and backends.model_tag == _MODEL
        if settings is None or not is_model or not any(settings.in_model.values()):
            return Sharding(_compiler() | sizes_as_options({})) if chosen == BACKEND else chosen
        return Sharding(options_of(settings, chosen), ENGINE.model)

    return init_backend


def options_of(settings: Settings, chosen: Any) -> dict[str, Any]:
    """The options of ``oproj_npu`` that compiles with ``chosen`` what it has rewritten."""
    return {
        **_compiler(),
        **for_roles(settings.options, settings.in_model),
        **({} if chosen == BACKEND else {"inner_backend": chosen, "inner_options": {}}),
        **sizes_as_options(settings.in_model),
        "group": process_group_of(settings.in_model),
        "capacity": settings.capacity,
        "agree_on_rows": False,  # vLLM's data-parallel ranks pad to one count, and ``guard`` refuses the rest
    }


def head_options_of(settings: Settings) -> dict[str, Any]:
    """The options of ``oproj_npu`` for the graph of the LM head: one product, so nothing is left to fuse.

    ``include``, ``exclude`` and ``expected_sites`` that are not given by role speak of the model's own graph.
    """
    by_role = {name: value for name, value in settings.options.items() if isinstance(value, Mapping)}
    return {
        **for_roles({name: by_role[name] for name in _BY_ROLE if name in by_role}, settings.of_head),
        **{name: settings.options[name] for name in ("timeout",) if name in settings.options},
        "inner_backend": "eager",
        **sizes_as_options(settings.of_head),
        "group": process_group_of(settings.of_head),
        "agree_on_rows": False,  # ``head`` always brings the same number
    }


def sizes_as_options(sizes: Mapping[str, int]) -> dict[str, int]:
    """The backend's option for the size of each role, 0 where there is none."""
    return {size_option(role): sizes.get(role, 0) for role in ROLE_TITLES}


def for_roles(options: Mapping[str, Any], roles: Collection[str]) -> dict[str, Any]:
    """The options of one graph: of those that are given by role, what they say of its roles."""
    return {name: _of_roles(value, roles) if name in _BY_ROLE else value for name, value in options.items()}


def _of_roles(value: Any, roles: Collection[str]) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {role: part for role, part in value.items() if role in roles or role not in ROLE_TITLES}


def _compiler() -> dict[str, Any]:
    return dict(_ON_NPU) if current_platform.device_type == "npu" else {}


class Sharding:
    """The Dynamo backend that vLLM compiles with: ``oproj_npu`` with the engine's options.

    ``sent``: learns what the graph sends.
    """

    def __init__(self, options: dict[str, Any], sent: SentBytes | None = None) -> None:
        self.options, self.sent = options, sent

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any], **_: Any) -> "NotStored":
        """Compile one graph."""
        compiled = oproj_npu(gm, example_inputs, options=self.options)
        if self.sent is not None:
            self.sent.learn(compiled)
        return NotStored(compiled)


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
