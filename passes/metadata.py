"""Recomputes the fake values of nodes that a pass created or changed, and of no others."""

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from oproj_pass.passes.provenance import value_of

_INHERITED = ("nn_module_stack", "stack_trace", "source_fn_stack", "from_node")


def value_key(node: Node) -> str:
    """The metadata key this graph keeps values under: ``val`` (ATen) or ``example_value`` (Dynamo)."""
    return "val" if "val" in node.meta else "example_value"


def inherit_origin(node: Node, origin: Node) -> None:
    """Give ``node`` the module path and source line of the node it stands in for."""
    node.meta.update({key: origin.meta[key] for key in _INHERITED if key in origin.meta})


def propagate(nodes: Iterable[Node], key: str) -> None:
    """Compute ``meta[key]`` of each node, in graph order, from its inputs' values. Shapes stay symbolic."""
    for node in nodes:
        with _fake_mode(node.graph):
            args, kwargs = map_arg((node.args, node.kwargs), value_of)
            node.meta[key] = _call(node, args, kwargs)


def _call(node: Node, args: Any, kwargs: Any) -> Any:
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target), f"{node.format_node()} has no value to propagate"
    return node.target(*args, **kwargs)


def _fake_mode(graph: Graph) -> Any:
    for node in graph.find_nodes(op="placeholder"):
        if isinstance(value_of(node), FakeTensor):
            return value_of(node).fake_mode
    return nullcontext()
