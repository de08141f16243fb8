"""The small, saved form of an FX graph that every diff is taken on.

Decides what of a graph is kept and how it is written: per node its name, op, target, arguments, shape,
dtype and origin, as JSON. Holds text and integers only, so a snapshot outlives the graph, the model and
the process, and symbolic sizes stay symbolic. Leaves the reading of an FX graph to `record`.
"""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from oproj_pass.errors import ConfigError

__all__ = ["GraphSnapshot", "NodeSnapshot", "Ref"]

_FORMAT = "oproj_pass.graph_snapshot"
_VERSION = 1


class Ref(NamedTuple):
    """A node named in another node's arguments."""

    name: str


@dataclass(frozen=True)
class NodeSnapshot:
    """One node.

    `args` is the printed argument list, cut where it names other nodes. `shape` holds integers and
    symbolic expressions (as text) and is None where the value is not one tensor. `dtype` is torch's name
    for it (`bfloat16`), or `SymInt`. `path` is the module path and `source` is `file:line`, both empty
    where unknown.
    """

    name: str
    op: str
    target: str
    args: tuple[str | Ref, ...] = ()
    shape: tuple[int | str, ...] | None = None
    dtype: str | None = None
    path: str = ""
    source: str = ""

    @cached_property
    def inputs(self) -> list[str]:
        """Names of the nodes this one reads, in the order of its arguments, repeats kept."""
        return [part.name for part in self.args if isinstance(part, Ref)]

    @property
    def is_input(self) -> bool:
        """Whether the node brings a value into the graph: a placeholder, or an attribute such as a weight."""
        return self.op in ("placeholder", "get_attr")


@dataclass(frozen=True)
class GraphSnapshot:
    """A graph's nodes, in execution order.

    Raises `ConfigError` when two nodes share a name or an argument names a node that is not there.
    """

    nodes: tuple[NodeSnapshot, ...]

    def __post_init__(self) -> None:
        for i, node in enumerate(self.nodes):
            if self.by_name[node.name] is not node:
                raise ConfigError(f"graph snapshot: node {i} and a later one are both named {node.name!r}")
            for name in node.inputs:
                if name not in self.by_name:
                    raise ConfigError(
                        f"graph snapshot: node {node.name!r} reads {name!r}, and no node has that name"
                    )

    @cached_property
    def by_name(self) -> dict[str, NodeSnapshot]:
        """The nodes, by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def users(self) -> dict[str, list[tuple[str, int]]]:
        """For each node, by name: the nodes that read it, each with the position among its inputs."""
        users: dict[str, list[tuple[str, int]]] = {node.name: [] for node in self.nodes}
        for node in self.nodes:
            for position, name in enumerate(node.inputs):
                users[name].append((node.name, position))
        return users

    def save(self, path: str | Path) -> None:
        """Write the snapshot to `path` as JSON: one object a node, a named node as `{"ref": name}`."""
        document = {"format": _FORMAT, "version": _VERSION, "nodes": [_to_json(n) for n in self.nodes]}
        Path(path).write_text(json.dumps(document, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "GraphSnapshot":
        """Read a snapshot that `save` wrote; `ConfigError` names the file and what is wrong with it."""
        try:
            return cls(_read_nodes(Path(path).read_text(encoding="utf-8")))
        except (ConfigError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: {error}") from error


def _to_json(node: NodeSnapshot) -> dict[str, Any]:
    fields = asdict(node)
    fields["args"] = [{"ref": part.name} if isinstance(part, Ref) else part for part in node.args]
    return fields


def _read_nodes(text: str) -> tuple[NodeSnapshot, ...]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"not a graph snapshot: {error}") from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ConfigError(
            f'not a graph snapshot: expected an object whose "format" is "{_FORMAT}"; write one with '
            "snapshot(graph).save(path)"
        )
    if document.get("version") != _VERSION:
        raise ConfigError(
            f"graph snapshot of version {document.get('version')!r}; this release reads version {_VERSION}"
        )
    nodes = document.get("nodes")
    if not isinstance(nodes, list):
        raise ConfigError(f'graph snapshot: "nodes" must be a list, found {type(nodes).__name__}')
    return tuple(_from_json(i, fields) for i, fields in enumerate(nodes))


def _from_json(index: int, fields: Any) -> NodeSnapshot:
    if not isinstance(fields, dict) or fields.keys() != NodeSnapshot.__dataclass_fields__.keys():
        wanted = ", ".join(NodeSnapshot.__dataclass_fields__)
        raise ConfigError(f"graph snapshot: node {index} must be an object with exactly the fields {wanted}")
    for name in ("name", "op", "target", "path", "source"):
        _require(isinstance(fields[name], str), index, name, fields[name], "a string")
    shape, dtype, args = fields["shape"], fields["dtype"], fields["args"]
    _require(dtype is None or isinstance(dtype, str), index, "dtype", dtype, "a string or null")
    sizes = shape is None or (isinstance(shape, list) and all(type(size) in (int, str) for size in shape))
    _require(sizes, index, "shape", shape, "null or a list of integers and strings")
    parts = isinstance(args, list) and all(isinstance(part, str) or _is_ref(part) for part in args)
    _require(parts, index, "args", args, 'a list of strings and {"ref": name}')
    return NodeSnapshot(
        **{
            **fields,
            "shape": None if shape is None else tuple(shape),
            "args": tuple(part if isinstance(part, str) else Ref(part["ref"]) for part in args),
        }
    )


def _is_ref(part: Any) -> bool:
    return isinstance(part, dict) and part.keys() == {"ref"} and isinstance(part["ref"], str)


def _require(holds: bool, index: int, field: str, value: Any, wanted: str) -> None:
    if not holds:
        raise ConfigError(f'graph snapshot: node {index}, "{field}" is {value!r}, required is {wanted}')
