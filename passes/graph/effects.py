"""Which tensors a node writes in place, whose storage it views, and what is constant for every token.

Attention kernels of serving engines return nothing and fill an ``out`` buffer; a search that follows only
return values loses their result. A node that is replaced must leave the same writes behind.
"""

import inspect
import operator
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.fx import Graph, GraphModule, Node

from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.provenance import rank_of, value_of
from oproj_pass.passes.graph.subgraphs import Subgraph, operands, subgraphs

_WRITES_FIRST = ops.INPLACE_OPERATORS | {operator.setitem}
_METHODS_THAT_WRITE = frozenset(f"__{target.__name__}__" for target in _WRITES_FIRST)
_VIEWS = ops.ALIASING | ops.CAST | ops.COPY
_NEVER_VIEWS = ops.targets(
    "clone", "_to_copy", "copy", "cat", "concat", "concatenate", "stack", "repeat", "repeat_interleave",
    "roll", "pad", "constant_pad_nd", "slice_scatter", "select_scatter", "index", "index_select",
) - ops.targets("copy_")  # fmt: skip
_TRITON_KERNEL = "triton_kernel_wrapper_mutation"


def mutated_inputs(node: Node) -> Iterator[Node]:
    """The node's inputs that it writes in place, each once."""
    yield from dict.fromkeys(_written(node))


def _written(node: Node) -> Iterator[Node]:
    if node.op not in ("call_function", "call_method", "call_module"):
        return
    if isinstance(node.target, torch._ops.OpOverload):
        yield from _written_arguments(node, node.target._schema)
    elif isinstance(node.target, torch._ops.OpOverloadPacket):
        for schema in node.target._schemas.values():
            yield from _written_arguments(node, schema)
    elif getattr(node.target, "__name__", "") == _TRITON_KERNEL:
        yield from node.all_input_nodes
    else:
        yield from _nodes([node.kwargs.get("out")])
        if _writes_first(node):
            yield from _nodes(node.args[:1] or [node.kwargs.get("input")])
    for subgraph in subgraphs(node):
        yield from _written_operands(node, subgraph)


def _writes_first(node: Node) -> bool:
    if node.target in _WRITES_FIRST or node.target in _METHODS_THAT_WRITE:
        return True
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or _is_told_to_write(node)


def _is_told_to_write(node: Node) -> bool:
    """``inplace=True``, as the functions of ``torch.nn.functional`` take it."""
    position = _position_of_inplace(node.target) if isinstance(node.target, FunctionType) else None
    given = node.args[position : position + 1] if position is not None else ()
    return bool(given[0] if given else node.kwargs.get("inplace"))


@lru_cache(maxsize=1024)  # the functions of torch, asked for at every node
def _position_of_inplace(function: FunctionType) -> int | None:
    names = [*inspect.signature(function).parameters]
    return names.index("inplace") if "inplace" in names else None


def _written_arguments(node: Node, schema: torch.FunctionSchema) -> Iterator[Node]:
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            is_positional = index < len(node.args) and not argument.kwarg_only
            yield from _nodes([node.args[index] if is_positional else node.kwargs.get(argument.name)])


def _written_operands(node: Node, subgraph: Subgraph) -> Iterator[Node]:
    written = written_inputs(subgraph.module)
    if subgraph.inputs is not None:
        yield from (operand for inner, operand in subgraph.inputs.items() if inner in written)
    elif written:
        yield from operands(node)


def _nodes(values: Iterable[Any]) -> Iterator[Node]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _nodes(value)
        elif isinstance(value, Node):
            yield value


def aliased_input(node: Node) -> Node | None:
    """The input whose storage the node's result may share; None if it is new memory, or no result at all."""
    operation = ops.operation(node)
    if node.op not in ("call_function", "call_method") or operation in _NEVER_VIEWS:
        return None
    if operation in _VIEWS or node.target is getattr:
        source = next(_nodes(node.args[:1]), None)
        return None if operation in ops.CAST and _is_converted(node, source) else source
    return next(mutated_inputs(node), None) if _returns_what_it_writes(node) else None


def _is_converted(node: Node, source: Node | None) -> bool:
    before, after = None if source is None else value_of(source), value_of(node)
    return isinstance(before, Tensor) and isinstance(after, Tensor) and before.dtype != after.dtype


def _returns_what_it_writes(node: Node) -> bool:
    if isinstance(node.target, torch._ops.OpOverload):
        returned = [value.alias_info for value in node.target._schema.returns]
        return any(alias is not None and alias.is_write for alias in returned)
    return node.target is not operator.setitem and not isinstance(node.target, HigherOrderOperator)


def is_mere_check(node: Node) -> bool:
    """Whether a node only asserts type and device, as ``torch.export`` does before a cast; no size."""
    is_check = node.target is torch.ops.aten._assert_tensor_metadata.default
    return is_check and node.args[1:] == () and not {"size", "stride"} & node.kwargs.keys()


def storage_owner(node: Node) -> Node:
    """The node whose storage ``node`` may be a view of: a graph input, or what made the memory."""
    while (source := aliased_input(node)) is not None:
        node = source
    return node


def written_inputs(gm: GraphModule) -> set[Node]:
    """The graph inputs that the graph writes in place, through views of them too."""
    written = {storage_owner(buffer) for node in gm.graph.nodes for buffer in mutated_inputs(node)}
    return {node for node in written if node.op == "placeholder"}


def emit_writes(graph: Graph, replaced: Node, result: Node) -> Node:
    """Insert the copy of ``result`` into what the replaced node writes; returns what stands in its place."""
    for buffer in mutated_inputs(replaced):
        result = graph.call_function(torch.ops.aten.copy_.default, (buffer, result))
    return result


class Dependence:
    """Tells activations from constants (parameters, sizes, fresh buffers); fed in graph order.

    A fresh buffer, and every view of it, turns into an activation when one is written into it.
    ``parameters`` are the placeholders that hold stored weights, None where the graph keeps no record.
    """

    def __init__(self, parameters: Iterable[Node] | None) -> None:
        self.anonymous = parameters is None
        self._parameters = frozenset(parameters or ())
        self._constant: set[Node] = set()
        self._base: dict[Node, Node] = {}
        self._filled: set[Node] = set()

    def add(self, node: Node) -> None:
        """Record the node, after every node before it."""
        source = aliased_input(node)
        self._base[node] = node if source is None else self._base[source]
        if self._is_constant(node):
            self._constant.add(node)

    def write(self, buffer: Node) -> None:
        """Record that an activation is written into ``buffer``."""
        self._filled.add(self._base[buffer])

    def base(self, node: Node) -> Node:
        """The node whose storage ``node`` views, itself if it is no view."""
        return self._base[node]

    def activations(self, node: Node) -> list[Node]:
        """The node's inputs that depend on a token, without the buffer that an ``out`` argument names."""
        return [x for x in node.all_input_nodes if self.is_activation(x) and x is not node.kwargs.get("out")]

    def is_activation(self, node: Node) -> bool:
        """Whether the node's value depends on a token."""
        return node not in self._constant or self._base[node] in self._filled

    def _is_constant(self, node: Node) -> bool:
        if isinstance(value_of(node), torch.SymInt | int | float | bool):
            return True
        if node.op == "placeholder":  # a vector is a bias, a norm's weight or a list of positions
            return rank_of(node) in (0, 1) if self.anonymous else node in self._parameters
        return ops.operation(node) in ops.FACTORY or not any(map(self.is_activation, node.all_input_nodes))
