"""Which tensors a node writes in place, and whose storage it views.

Attention kernels of serving engines return nothing and fill an ``out`` buffer; a search that follows only
return values loses their result. A node that is replaced must leave the same writes behind.
"""

import inspect
import operator
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.fx import Graph, GraphModule, Node

from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.graph.subgraphs import Subgraph, operands, subgraphs

_WRITES_FIRST = ops.INPLACE_OPERATORS | {operator.setitem}
_METHODS_THAT_WRITE = frozenset(f"__{target.__name__}__" for target in _WRITES_FIRST)
_TOLD_TO_WRITE = frozenset(("out", "inplace"))
_TRITON_KERNEL = "triton_kernel_wrapper_mutation"


def mutated_inputs(node: Node) -> Collection[Node]:
    """The node's inputs that it writes in place, each once."""
    return dict.fromkeys(_written(node)) if _may_write(node) else ()


def _may_write(node: Node) -> bool:
    if node.op in ("call_function", "call_method"):
        return not (_never_writes(node.target) and _TOLD_TO_WRITE.isdisjoint(node.kwargs))
    return node.op == "call_module"


@lru_cache(maxsize=4096)  # a graph calls few targets in tens of thousands of nodes
def _never_writes(target: Any) -> bool:
    """Whether no call of a target writes, unless its keywords tell it to."""
    if isinstance(target, torch._ops.OpOverload):
        return not _has_writes(target._schema)
    if isinstance(target, torch._ops.OpOverloadPacket):
        return not any(map(_has_writes, target._schemas.values()))
    if isinstance(target, HigherOrderOperator) or _is_named_as_a_write(target):
        return False
    return not isinstance(target, FunctionType) or _position_of_inplace(target) is None


def _has_writes(schema: torch.FunctionSchema) -> bool:
    aliases = (argument.alias_info for argument in schema.arguments)
    return any(alias is not None and alias.is_write for alias in aliases)


def _written(node: Node) -> Iterator[Node]:
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
    return (node.op != "call_module" and _is_named_as_a_write(node.target)) or _is_told_to_write(node)


def _is_named_as_a_write(target: Any) -> bool:
    """Of a function or, as a string, a method."""
    if target in _WRITES_FIRST or target in _METHODS_THAT_WRITE:
        return True
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return name.endswith("_") and not name.endswith("__")


def _is_told_to_write(node: Node) -> bool:
    """``inplace=True``, as the functions of ``torch.nn.functional`` take it."""
    position = _position_of_inplace(node.target) if isinstance(node.target, FunctionType) else None
    given = node.args[position : position + 1] if position is not None else ()
    return bool(given[0] if given else node.kwargs.get("inplace"))


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
    if node.op not in ("call_function", "call_method"):
        return None
    if _views_its_first(node.target):
        source = next(_nodes(node.args[:1]), None)
        return None if ops.operation(node) in ops.CAST and _is_converted(node, source) else source
    written = mutated_inputs(node)
    return next(iter(written)) if written and _returns_what_it_writes(node) else None


@lru_cache(maxsize=4096)
def _views_its_first(target: Any) -> bool:
    return target is getattr or ops.packet(target) in ops.ALIASING


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
