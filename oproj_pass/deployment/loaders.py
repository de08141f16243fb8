"""Reads a deployment from a file or from a live VllmConfig, as plain fields.

Decides where each field is found; names and values are checked by the model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from oproj_pass.deployment.flatten import spelled
from oproj_pass.deployment.hf_config import model_facts
from oproj_pass.errors import ConfigError

__all__ = ["read_file", "read_vllm_config"]

_MISSING = object()

# sub-config of VllmConfig -> its attribute -> the flat field; (attribute, default) where old releases lack it
_VLLM_FIELDS: dict[str, tuple[tuple[str, str, Any], ...]] = {
    "parallel_config": (
        ("tensor_parallel_size", "tensor_parallel_size", _MISSING),
        ("data_parallel_size", "data_parallel_size", _MISSING),
        ("pipeline_parallel_size", "pipeline_parallel_size", _MISSING),
        ("prefill_context_parallel_size", "prefill_context_parallel_size", 1),
    ),
    "scheduler_config": (
        ("max_num_seqs", "max_num_seqs", _MISSING),
        ("max_num_batched_tokens", "max_num_batched_tokens", _MISSING),
    ),
    "compilation_config": (
        ("cudagraph_mode", "cudagraph_mode", _MISSING),
        ("cudagraph_capture_sizes", "cudagraph_capture_sizes", _MISSING),
        ("max_cudagraph_capture_size", "max_cudagraph_capture_size", None),
        ("mode", "compilation_mode", None),
        ("backend", "compilation_backend", None),
    ),
    "model_config": (("enforce_eager", "enforce_eager", False),),
}


def read_file(path: Path) -> dict[str, Any]:
    """Return the fields of a .json, .yaml or .yml file, with the facts of a model that is on this machine.

    The model is `hf_config`, or else `model`: a config.json or its folder. What the file states itself wins
    over the config of `model`.

    Raises:
        ConfigError: a file is missing, of another kind, malformed, or not a mapping.
    """
    fields = {spelled(name): value for name, value in _read_mapping(path).items()}
    config, model = fields.get("hf_config"), fields.get("model")
    if isinstance(config, str):
        fields["hf_config"] = _read_mapping(_config_file(path.parent / config))
    elif config is None and isinstance(model, str) and (found := _local_config(model, path.parent)):
        facts = model_facts(_read_mapping(found))
        fields |= {name: fact for name, fact in facts.items() if fields.get(name) is None}
    return fields


def _local_config(model: str, folder: Path) -> Path | None:
    """The config.json of `model`, seen from `folder` or from here; None for what may be a hub's name."""
    places = [_config_file(start / model) for start in (folder, Path())]
    found = next((place for place in places if place.suffix == ".json" and place.is_file()), None)
    return places[0] if found is None and model.endswith(".json") else found


def _config_file(place: Path) -> Path:
    return place / "config.json" if place.is_dir() else place


def _read_mapping(path: Path) -> dict[str, Any]:
    if path.suffix not in (".json", ".yaml", ".yml"):
        raise ConfigError(f"{path} ends in {path.suffix!r}, required: .json, .yaml or .yml.")
    try:
        text = path.read_text(encoding="utf-8")
        fields = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. Check the path.") from error
    except (json.JSONDecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is malformed: {error}") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"{path} holds a {type(fields).__name__}, required: a mapping of fields.")
    return fields


def read_vllm_config(vllm_config: Any) -> dict[str, Any]:
    """Return the fields of a VllmConfig, or of anything shaped like one; reads attributes only.

    Raises:
        ConfigError: a sub-config or an attribute that every VllmConfig has is absent.
    """
    fields: dict[str, Any] = {}
    for section, attributes in _VLLM_FIELDS.items():
        config = _attribute(vllm_config, section)
        for attribute, field, default in attributes:
            fields[field] = _attribute(config, attribute, default, section)
    if fields["cudagraph_capture_sizes"]:
        fields["max_cudagraph_capture_size"] = None  # these sizes are final, and the ceiling is their largest
    speculative = _attribute(vllm_config, "speculative_config", None)
    if speculative is not None:
        fields["num_speculative_tokens"] = _attribute(speculative, "num_speculative_tokens", 0)
    fields |= _kv_transfer_fields(_attribute(vllm_config, "kv_transfer_config", None))
    fields["additional_config"] = _attribute(vllm_config, "additional_config", None)
    fields["device_type"] = _attribute(_attribute(vllm_config, "device_config", None), "device_type", "npu")
    hf_config = _attribute(vllm_config.model_config, "hf_text_config", None)
    return fields | (model_facts(hf_config) if hf_config is not None else {})


def _kv_transfer_fields(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    names = ("kv_connector", "kv_role", "kv_connector_extra_config")
    return {"kv_transfer_config": {name: _attribute(config, name, None) for name in names}}


def _attribute(config: Any, name: str, default: Any = _MISSING, owner: str = "VllmConfig") -> Any:
    value = getattr(config, name, default)
    if value is _MISSING:
        raise ConfigError(f"{owner} has no attribute {name!r}. Pass the whole VllmConfig of the engine.")
    return value
