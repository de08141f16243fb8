"""Argument checks shared by the planning modules. Decides nothing about sizes."""

from oproj_pass.errors import ConfigError


def require_int(field: str, value: object, *, minimum: int) -> int:
    """Return `value` if it is an integer of at least `minimum`, else raise ConfigError naming `field`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{field}={value!r} must be an integer, got {type(value).__name__}")
    if value < minimum:
        raise ConfigError(f"{field}={value} must be at least {minimum}")
    return value
