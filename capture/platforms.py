"""The table of platforms: whose defaults a plan starts from and is compared with. One row each."""

from collections.abc import Callable
from dataclasses import dataclass

from oproj_pass.capture.baselines import (
    Sizes,
    vllm_ascend_max_size,
    vllm_ascend_sizes,
    vllm_max_size,
    vllm_sizes,
)
from oproj_pass.capture.bounds import StepBound
from oproj_pass.errors import ConfigError


@dataclass(frozen=True)
class Platform:
    """What the ``engine`` of a platform does by itself.

    ``default_max_size``: the ceiling it takes when none is set. ``sizes``: its final list of capture sizes.
    """

    engine: str
    default_max_size: Callable[[StepBound], int]
    sizes: Callable[..., Sizes]


PLATFORMS = {
    "npu": Platform("vllm-ascend", vllm_ascend_max_size, vllm_ascend_sizes),
    "cuda": Platform("vLLM", vllm_max_size, vllm_sizes),
}
"""Each platform whose capture defaults are known."""


def platform_of(device_type: str) -> str:
    """The platform whose capture defaults vLLM's `device_type` has."""
    return "npu" if device_type == "npu" else "cuda"


def require_platform(name: str) -> Platform:
    """The platform called `name`; raises ConfigError if its capture defaults are not known."""
    if name not in PLATFORMS:
        raise ConfigError(f"platform={name!r} is unknown: use one of {', '.join(map(repr, PLATFORMS))}")
    return PLATFORMS[name]
