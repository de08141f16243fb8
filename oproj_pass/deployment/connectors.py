"""Reads a KV connector chain: every connector in it, however deeply MultiConnectors nest.

Decides what is a connector and what it says about itself. What a deployment requires of it is for the rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CONSUMERS", "PRODUCERS", "Connector", "walk_connectors"]

CONSUMERS = ("kv_consumer", "kv_both")
PRODUCERS = ("kv_producer", "kv_both")


@dataclass(frozen=True)
class Connector:
    """One connector of a chain: where it stands (`path`), its class name, its role, its extra config."""

    path: str
    name: str
    kv_role: str | None
    extra_config: Mapping[str, Any]

    @property
    def is_consumer(self) -> bool:
        """Whether it receives KV cache, by vLLM's meaning: `kv_both` does too."""
        return self.kv_role in CONSUMERS

    @property
    def is_producer(self) -> bool:
        """Whether it sends KV cache, by vLLM's meaning: `kv_both` does too."""
        return self.kv_role in PRODUCERS


def walk_connectors(kv_transfer_config: Mapping[str, Any] | None) -> tuple[Connector, ...]:
    """Return every connector of the chain, parents before children.

    Walks mappings, sequences and objects with a `kv_connector` attribute, through `kv_connector_extra_config`
    or any other key. A container that holds itself is visited once. A child without a role has its parent's.
    """
    return tuple(_walk(kv_transfer_config, "kv_transfer_config", None, set()))


def _walk(node: Any, path: str, parent_role: str | None, seen: set[int]) -> Iterator[Connector]:
    if node is None or id(node) in seen:
        return
    if isinstance(node, (list, tuple)):
        seen.add(id(node))
        for index, item in enumerate(node):
            yield from _walk(item, f"{path}[{index}]", parent_role, seen)
        return
    fields = node if isinstance(node, Mapping) else _fields_of(node)
    if fields is None:
        return
    seen.add(id(node))
    role = fields.get("kv_role") or parent_role
    name = fields.get("kv_connector")
    if isinstance(name, str):
        extra = fields.get("kv_connector_extra_config")
        yield Connector(path, name, role, extra if isinstance(extra, Mapping) else {})
    for key, value in fields.items():
        yield from _walk(value, f"{path}.{key}", role, seen)


def _fields_of(node: Any) -> Mapping[str, Any] | None:
    if not hasattr(node, "kv_connector"):
        return None
    return {
        name: getattr(node, name, None) for name in ("kv_connector", "kv_role", "kv_connector_extra_config")
    }
