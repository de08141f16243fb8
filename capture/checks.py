"""Argument checks shared by the planning modules. Decides nothing about sizes."""

from oproj_pass.errors import ConfigError

PLATFORMS = {"npu": "vllm-ascend", "cuda": "vLLM"}
"""Each platform whose capture defaults are known, and the engine that sets them."""


def require_int(field: str, value: object, *, minimum: int) -> int:
    """Return `value` if it is an integer of at least `minimum`, else raise ConfigError naming `field`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{field}={value!r} must be an integer, got {type(value).__name__}")
    if value < minimum:
        raise ConfigError(f"{field}={value} must be at least {minimum}")
    return value


def platform_of(device_type: str) -> str:
    """The platform whose capture defaults vLLM's `device_type` has."""
    return "npu" if device_type == "npu" else "cuda"


def require_platform(platform: str) -> str:
    """Return `platform` if its capture defaults are known, else raise ConfigError."""
    if platform not in PLATFORMS:
        raise ConfigError(f"platform={platform!r} is unknown: use one of {', '.join(map(repr, PLATFORMS))}")
    return platform
