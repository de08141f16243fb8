"""Whole numbers as vLLM takes them: `8k` is 8000, `8K` is 8192, `25.6k` is 25600."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["whole_number"]

_READABLE = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT])")


def whole_number(value: Any) -> Any:
    """`value`, a readable number as an integer; `ValueError` for a boolean, which is not one."""
    if isinstance(value, bool):
        raise ValueError("a whole number")
    match = _READABLE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return value
    number, suffix = match.groups()
    if suffix.islower():
        return round(float(number) * 1000 ** ("kmgt".index(suffix) + 1))
    if "." in number:
        raise ValueError(f"a whole number: {suffix} counts in powers of two, write {number}{suffix.lower()}")
    return int(number) * 1024 ** ("KMGT".index(suffix) + 1)
