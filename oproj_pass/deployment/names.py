"""Field names: which are known, which are near misses, and what a near miss should have been."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["near_misses", "suggestion"]

_MISPLACED = {
    "oproj_tensor_parallel_size": "additional_config.finegrained_tp_config.oproj_tensor_parallel_size",
    "finegrained_tp_config": "additional_config.finegrained_tp_config",
    "recompute_scheduler_enable": "additional_config.recompute_scheduler_enable",
    "kv_role": "kv_transfer_config.kv_role",
    "kv_connector": "kv_transfer_config.kv_connector",
    "kv_connector_extra_config": "kv_transfer_config.kv_connector_extra_config",
    "mode": "compilation_config.mode",
    "backend": "compilation_config.backend",
}


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the closest known name, or nothing."""
    if name in _MISPLACED:
        return f" (it belongs under {_MISPLACED[name]})"
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def near_misses(fields: Mapping[Any, Any], known: Iterable[str]) -> dict[str, str]:
    """Return the keys of `fields` that almost spell a known name, each with that name.

    For configurations with many keys of other people: a far key is theirs, a near one is a slip.
    """
    known = frozenset(known)
    found = {}
    for name in fields:
        if isinstance(name, str) and name not in known:
            close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.85)
            if close:
                found[name] = close[0]
    return found
