"""Reads an FX graph into a `GraphSnapshot`.

Decides how arguments, shapes and dtypes are printed. Forces no symbolic size and reads no tensor data;
leaves out nested graph modules (they stay one `get_attr` node) and all metadata but the origin.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.fx

from oproj_pass.errors import ConfigError
from oproj_pass.passes.diff.graph_snapshot import GraphSnapshot, NodeSnapshot, Ref
from oproj_pass.passes.diff.origin import common_path, source_line, target_name
from oproj_pass.passes.graph.provenance import module_path

__all__ = ["as_snapshot", "snapshot"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
# A rewrite that propagates fake tensors again writes "val", whatever was there before.
_VALUE_KEYS = ("val", "example_value", "tensor_meta")


def snapshot(graph: torch.fx.GraphModule | torch.fx.Graph) -> GraphSnapshot:
    """Take what a diff needs from `graph`, which may be rewritten or freed afterwards."""
    fx_graph = graph.graph if isinstance(graph, torch.fx.GraphModule) else graph
    return GraphSnapshot(tuple(_record(node) for node in fx_graph.nodes))


def as_snapshot(graph: torch.fx.GraphModule | torch.fx.Graph | GraphSnapshot, role: str) -> GraphSnapshot:
    """`graph` itself, or its snapshot; `role` names the argument in the error for anything else."""
    if isinstance(graph, GraphSnapshot):
        return graph
    if isinstance(graph, torch.fx.GraphModule | torch.fx.Graph):
        return snapshot(graph)
    raise ConfigError(
        f"{role}: expected a torch.fx.GraphModule, a torch.fx.Graph or a GraphSnapshot, got "
        f"{type(graph).__name__}; read a saved graph with GraphSnapshot.load(path)"
    )


def _record(node: torch.fx.Node) -> NodeSnapshot:
    shape, dtype = _shape_and_dtype(node)
    is_input = node.op in ("placeholder", "get_attr")
    # Dynamo stamps an input with whatever module read it first; its users say where it belongs.
    path = common_path(map(module_path, node.users)) if is_input else module_path(node)
    return NodeSnapshot(
        name=node.name,
        op=node.op,
        target=target_name(node.target),
        args=_merge_text(_arguments(node)),
        shape=shape,
        dtype=dtype,
        path=path,
        source=source_line(node),
    )


def _shape_and_dtype(node: torch.fx.Node) -> tuple[tuple[int | str, ...] | None, str | None]:
    value = next((node.meta[key] for key in _VALUE_KEYS if key in node.meta), None)
    if isinstance(value, torch.SymInt):
        return None, "SymInt"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if not isinstance(shape, tuple) or not isinstance(dtype, torch.dtype):
        return None, None
    return tuple(_size(size) for size in shape), str(dtype).removeprefix("torch.")


def _size(size: int | torch.SymInt) -> int | str:
    text = str(size)
    return int(text) if text.isdigit() else text


def _arguments(node: torch.fx.Node) -> Iterator[str | Ref]:
    return _joined(
        [*(("", arg) for arg in node.args), *((f"{key}=", arg) for key, arg in node.kwargs.items())]
    )


def _joined(items: Iterable[tuple[str, Any]]) -> Iterator[str | Ref]:
    for i, (prefix, arg) in enumerate(items):
        yield f"{', ' if i else ''}{prefix}"
        yield from _argument(arg)


def _argument(arg: Any) -> Iterator[str | Ref]:
    if isinstance(arg, torch.fx.Node):
        yield Ref(arg.name)
    elif isinstance(arg, dict):
        yield "{"
        yield from _joined((f"{key!r}: ", value) for key, value in arg.items())
        yield "}"
    elif isinstance(arg, list | tuple):
        yield "[" if isinstance(arg, list) else "("
        yield from _joined(("", item) for item in arg)
        yield "]" if isinstance(arg, list) else ",)" if len(arg) == 1 else ")"
    elif isinstance(arg, slice):
        yield "slice("
        yield from _joined(("", bound) for bound in (arg.start, arg.stop, arg.step))
        yield ")"
    elif isinstance(arg, torch.Tensor):
        yield f"tensor{list(arg.shape)}"
    else:
        yield _ADDRESS.sub("", repr(arg))


def _merge_text(parts: Iterable[str | Ref]) -> tuple[str | Ref, ...]:
    merged: list[str | Ref] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        elif part:
            merged.append(part)
    return tuple(merged)
