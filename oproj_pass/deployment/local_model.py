"""Finds the model that a deployment names on this machine, and adds its facts to the fields.

A config.json, a folder, or a name in the cache of what was downloaded from the hub: never the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from oproj_pass.deployment.files import read_mapping
from oproj_pass.deployment.flatten import spelled
from oproj_pass.deployment.hf_config import model_facts

__all__ = ["config_file", "with_model_facts"]


def with_model_facts(fields: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """`fields` with the facts of the model that they name, seen from `folder`.

    `hf_config_path` says where the engine reads the config of `model` instead.
    """
    fields = {spelled(name): value for name, value in fields.items()}
    config, model = fields.get("hf_config"), fields.get("hf_config_path") or fields.get("model")
    if isinstance(config, str):
        fields["hf_config"] = read_mapping(config_file(folder / config))
    elif config is None and isinstance(model, str) and (found := _local_config(model, folder)):
        facts = model_facts(read_mapping(found))
        fields |= {name: fact for name, fact in facts.items() if fields.get(name) is None}
    return fields


def _local_config(model: str, folder: Path) -> Path | None:
    """The config.json of `model`, seen from `folder` or from here, or in the cache of what was downloaded."""
    places = [config_file(start / model) for start in (folder, Path())]
    found = next((place for place in places if place.suffix == ".json" and place.is_file()), None)
    if found is None and model.endswith(".json"):
        return places[0]
    return found or _cached_config(model)


def _cached_config(model: str) -> Path | None:
    if model.count("/") != 1 or find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - an extra, and slow to load

    cached = try_to_load_from_cache(model, "config.json")
    return Path(cached) if isinstance(cached, str) else None


def config_file(place: Path) -> Path:
    """The config.json of a model's folder, or `place` itself."""
    return place / "config.json" if place.is_dir() else place
