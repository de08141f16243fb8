"""Field names: which are known, which are near misses, and what a near miss should have been."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from oproj_pass.deployment.knobs import Knob
from oproj_pass.deployment.rule import Rule

__all__ = ["near_misses", "suggestion"]

_MISPLACED = {
    **{knob.value: f"{Rule.USABLE_SIZES.field}.{knob}" for knob in Knob},
    "finegrained_tp_config": Rule.USABLE_SIZES.field,
    "recompute_scheduler_enable": Rule.RECOMPUTE_SCHEDULER.field,
    "scheduler_config": "additional_config.scheduler_config",
    "kv_role": Rule.KV_CONSUMER.field,
    "kv_connector": Rule.PREEMPT_OFFLOAD.field,
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
