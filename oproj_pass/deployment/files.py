"""Files as text and as mappings, with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from oproj_pass.errors import ConfigError

__all__ = ["SCRIPTS", "parse_mapping", "read_mapping", "text_of"]

MAPPINGS, SCRIPTS = (".json", ".yaml", ".yml"), (".sh", ".bash")


def read_mapping(path: Path) -> dict[str, Any]:
    """The fields of a JSON or YAML file; `ConfigError` where it is missing, another kind, or no mapping."""
    if path.suffix not in MAPPINGS:
        raise ConfigError(f"{path} ends in {path.suffix!r}, required: {', '.join(MAPPINGS + SCRIPTS)}.")
    return parse_mapping(text_of(path), str(path))


def text_of(path: Path) -> str:
    """What a file holds; `ConfigError` where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. Check the path.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is malformed: {error}") from error


def parse_mapping(text: str, source: str) -> dict[str, Any]:
    """The fields of a JSON or YAML text; `source` names it in messages, and JSON where it ends in `.json`."""
    try:
        fields = json.loads(text) if source.endswith(".json") else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{source} is malformed: {error}") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"{source} holds a {type(fields).__name__}, required: a mapping of fields.")
    return fields
