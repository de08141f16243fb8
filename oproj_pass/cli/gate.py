"""Judges a diff against one that was accepted: no place is lost, and no collective appears."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from oproj_pass.errors import ConfigError


def regressions(base: Path, summary: Mapping[str, Any]) -> list[str]:
    """What is worse than in ``base``, the JSON of an earlier `oproj diff`, one finding a line."""
    return [*_lost(_read(base), summary), *_appeared(_read(base), summary)]


def _lost(base: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[str]:
    now = set(summary["paths"])
    for path in base["paths"]:
        if path not in now:
            yield f"no longer changed: {path or 'a place without a module path'}"


def _appeared(base: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[str]:
    for name, count in summary["collectives"].items():
        before = base["collectives"].get(name, {"after": 0})["after"]
        if count["after"] > before:
            yield f"{name}: {count['after']} calls, {before} accepted"


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict) or not {"paths", "collectives"} <= found.keys():
        raise ConfigError(f"{path}: not a diff: write one with `oproj diff ... --json`")
    return found
