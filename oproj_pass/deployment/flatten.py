"""Brings every accepted spelling of a deployment into the flat fields of `Deployment`.

Accepts `vllm serve` spellings (dashes, JSON strings) and vLLM's nested `compilation_config` and
`speculative_config`, and a Hugging Face config. Decides names only; values are checked by the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from oproj_pass.deployment.engine_args import ENGINE_ARGS
from oproj_pass.deployment.hf_config import model_facts
from oproj_pass.deployment.names import near_misses, suggestion
from oproj_pass.deployment.switches import (
    NONBSP,
    O_PROJ_OVER_PCP,
    RECOMPUTE_SCHEDULER,
    SCHEDULER_SECTION,
    VOCABULARY_OVER_PCP,
    section,
)
from oproj_pass.errors import ConfigError

__all__ = ["flatten", "place_in_vllm", "places", "spelled"]

# section -> its key -> the flat field
_SECTIONS = {
    "compilation_config": {
        "cudagraph_mode": "cudagraph_mode",
        "cudagraph_capture_sizes": "cudagraph_capture_sizes",
        "max_cudagraph_capture_size": "max_cudagraph_capture_size",
        "mode": "compilation_mode",
        "backend": "compilation_backend",
    },
    "speculative_config": {
        "num_speculative_tokens": "num_speculative_tokens",
        "method": "speculative_method",
    },
}
_ONLY_COMPILATION = {  # flat field -> its key: `vllm serve` has no argument for these
    "cudagraph_mode": "cudagraph_mode",
    "compilation_mode": "mode",
    "compilation_backend": "backend",
}
_SHORTHANDS = {"spec_tokens": "num_speculative_tokens", "spec_method": "speculative_method"}
_KEPT_SECTIONS = {
    "additional_config": (RECOMPUTE_SCHEDULER, SCHEDULER_SECTION, O_PROJ_OVER_PCP, VOCABULARY_OVER_PCP),
    "kv_transfer_config": ("kv_connector", "kv_role", "kv_connector_extra_config"),
}


def flatten(fields: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Return `fields` as flat deployment fields.

    Args:
        fields: a deployment in any accepted spelling.
        known: the flat field names.

    Raises:
        ConfigError: a name is unknown, a section is not a mapping, or two spellings of a field disagree.
    """
    fields = {spelled(name): value for name, value in fields.items()}
    flat: dict[str, Any] = {}
    unknown = []
    names = {*known, *_SECTIONS, *_KEPT_SECTIONS, "hf_config"}
    for name, value in fields.items():
        if name in _SECTIONS:
            _merge(flat, _flatten_section(name, value), name)
        elif name in _KEPT_SECTIONS:
            flat[name] = _keep_section(name, value)
        elif name == "hf_config":
            _merge(flat, model_facts(_section(name, value)), name)
        elif (field := _SHORTHANDS.get(name, name)) in names:
            _merge(flat, {field: value}, name)
        elif name.removeprefix("no_") not in ENGINE_ARGS:
            unknown.append(f"{name!r} is not a deployment field{suggestion(name, names)}")
    if unknown:
        raise ConfigError("; ".join(unknown) + f". Known fields: {', '.join(sorted(names))}.")
    if str(fields.get("optimization_level")) == "0":  # vLLM's level without graphs
        flat.setdefault("cudagraph_mode", "NONE")
    return flat


def places(fields: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Where `fields` state each field: its own name, or a section and its key."""
    stated = {spelled(name): value for name, value in fields.items()}
    found: dict[str, tuple[str, ...]] = {name: (name,) for name in stated}
    for name, keys in _SECTIONS.items():
        if isinstance(given := stated.get(name), (str, Mapping)):
            found |= {keys[key]: (name, key) for key in _section(name, given) if key in keys}
    return found


def place_in_vllm(name: str) -> tuple[str, ...]:
    """Where `vllm serve` has a field: an argument of its own, or a section and its key."""
    return ("compilation_config", _ONLY_COMPILATION[name]) if name in _ONLY_COMPILATION else (name,)


def spelled(name: Any) -> str:
    """A field's name, given as on the command line of `vllm serve` or as in Python."""
    return str(name).removeprefix("--").replace("-", "_")


def _flatten_section(name: str, value: Any) -> dict[str, Any]:
    if name == "compilation_config" and isinstance(value, int):  # `-O3` is short for mode 3
        value = {"mode": value}
    given, keys = _section(name, value), _SECTIONS[name]
    _refuse_near_misses(name, given, keys)
    return {flat: given[key] for key, flat in keys.items() if given.get(key) is not None}


def _keep_section(name: str, value: Any) -> dict[str, Any]:
    kept = _section(name, value)
    _refuse_near_misses(name, kept, _KEPT_SECTIONS[name])
    scheduler = section(kept, SCHEDULER_SECTION)
    _refuse_near_misses(f"{name}.{SCHEDULER_SECTION}", scheduler, (RECOMPUTE_SCHEDULER, NONBSP))
    return kept


def _section(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{name} is not valid JSON: {error}. Check its quotes and commas.") from None
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} is a {type(value).__name__}, required: a mapping or a JSON object.")
    return dict(value)


def _refuse_near_misses(name: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    misses = near_misses(given, known)
    if misses:
        texts = (f"{name} has no key {miss!r}; did you mean {meant!r}?" for miss, meant in misses.items())
        raise ConfigError(" ".join(texts))


def _merge(flat: dict[str, Any], new: Mapping[str, Any], source: str) -> None:
    for name, value in new.items():
        if value is None:
            continue
        if name in flat and flat[name] != value:
            raise ConfigError(
                f"{name} is given twice: {flat[name]!r} and, by {source}, {value!r}. Keep one of the two."
            )
        flat[name] = value
