"""Recomputes the fake values of nodes that a pass created or changed, and of no others.

Layers repeat: on a Dynamo graph a call is made once for each operation and each kind of input, and equal
calls share its result. Not on an ATen graph, whose compilers read from a value's storage what aliases what.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from oproj_pass.passes.graph.provenance import value_of

_INHERITED = ("nn_module_stack", "stack_trace", "source_fn_stack", "from_node")
_OF_DYNAMO = "example_value"


def value_key(node: Node) -> str:
    """The metadata key this graph keeps values under: ``val`` (ATen) or ``example_value`` (Dynamo)."""
    return "val" if "val" in node.meta else _OF_DYNAMO


def inherit_origin(node: Node, origin: Node) -> None:
    """Give ``node`` the module path and source line of the node it stands in for."""
    node.meta.update({key: origin.meta[key] for key in _INHERITED if key in origin.meta})


def propagate(nodes: Iterable[Node], key: str) -> None:
    """Compute ``meta[key]`` of each node, in graph order, from its inputs' values. Shapes stay symbolic."""
    nodes = sorted(nodes)  # as a pass tells of them, a site may come before the one that it reads
    values = SharedValues(key)
    # Some operators' shapes are computed in C++, which takes symbolic sizes from Python's dispatcher alone.
    with _fake_mode(nodes[0].graph) if nodes else nullcontext(), enable_python_dispatcher():
        for node in nodes:
            args, kwargs = map_arg((node.args, node.kwargs), value_of)
            node.meta[key] = values.of(_call, node.op, node.target, args, kwargs)


class SharedValues:
    """Fake values by what they are computed from; only values under Dynamo's ``key`` are shared."""

    def __init__(self, key: str) -> None:
        self._shares = key == _OF_DYNAMO
        self._known: dict[Any, Any] = {}
        self._kinds: dict[int, tuple[Tensor, Any]] = {}  # by identity, of tensors that are kept alive so

    def of(self, compute: Callable[..., Any], *inputs: Any) -> Any:
        """What ``compute`` makes of ``inputs``, or made of inputs of the same kind before."""
        if not self._shares:
            return compute(*inputs)
        kind = (compute, self._kind(inputs))
        if kind not in self._known:
            self._known[kind] = compute(*inputs)
        return self._known[kind]

    def _kind(self, value: Any) -> Any:
        """What a result follows from: of tensors their metadata, of symbolic sizes their expressions."""
        if isinstance(value, Tensor):
            if id(value) not in self._kinds:
                self._kinds[id(value)] = value, self._kind_of_tensor(value)
            return self._kinds[id(value)][1]
        if isinstance(value, torch.SymInt):
            return ("size", value.node.expr)
        if isinstance(value, list | tuple):
            return tuple(map(self._kind, value))
        if isinstance(value, slice):
            return ("slice", self._kind((value.start, value.stop, value.step)))
        if isinstance(value, Mapping):
            return tuple((name, self._kind(item)) for name, item in value.items())
        return (type(value), value)

    def _kind_of_tensor(self, value: Tensor) -> Any:
        sizes = self._kind((*value.shape, *value.stride(), value.storage_offset()))
        return ("tensor", value.dim(), sizes, value.dtype, value.device, value.requires_grad)


def _call(op: str, target: Any, args: Any, kwargs: Any) -> Any:
    if op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    assert callable(target), f"{op} {target} has no value to propagate"
    return target(*args, **kwargs)


def is_fake(value: Any) -> bool:
    """Whether a value is Dynamo's stand-in for a tensor."""
    return isinstance(value, FakeTensor)


def _fake_mode(graph: Graph) -> Any:
    for node in graph.find_nodes(op="placeholder"):
        if is_fake(value_of(node)):
            return value_of(node).fake_mode
    return nullcontext()
