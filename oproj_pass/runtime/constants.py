"""Inputs that are not tensors: captured graphs hold the value that they had.

Decides which values may be such a constant, and when two of them are the same.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from oproj_pass.errors import ConfigError

_CONTAINERS = (list, tuple, set, frozenset)


def require_constant(name: str, value: Any) -> None:
    """Raise ``ConfigError`` for an array, or a container of arrays or tensors: graphs would keep old ones."""
    for path, array in _arrays(value, ""):
        found = f"is a {_kind(array)}" if not path else f"holds a {_kind(array)} at {path}"
        raise ConfigError(
            f"input {name!r} {found}, which captured graphs would read as it was at capture. Pass each "
            "tensor as an input of its own (an array by torch.from_numpy) and declare it in `rows`. "
            "State that is only written in place can be bound to the callable with functools.partial"
        )


def is_same_constant(name: str, value: Any, captured: Any) -> bool:
    """Whether a graph that holds ``captured`` serves ``value``; raises as ``require_constant`` does."""
    if type(value) is not type(captured):
        require_constant(name, value)
        return False
    try:
        return bool(value == captured)
    except Exception:  # what compares to something that is no truth value, or cannot be compared
        require_constant(name, value)
        return False


def _arrays(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The tensors and arrays in nested containers and dataclasses, each with its path."""
    if isinstance(value, Tensor) or _is_numpy(value):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _arrays(item, f"{path}[{key!r}]")
    elif isinstance(value, _CONTAINERS):
        for position, item in enumerate(value):
            yield from _arrays(item, f"{path}[{position}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _arrays(getattr(value, field.name), f"{path}.{field.name}")


def _is_numpy(value: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _kind(array: Any) -> str:
    return "tensor" if isinstance(array, Tensor) else "numpy array"
