"""The graphs inside a graph: bodies of higher-order operators (checkpoint, ``cond``, ``scan``), and modules.

An operator names its bodies by ``get_attr`` nodes and passes them its last operands, in order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from oproj_pass.passes.graph.provenance import placeholders

_REMEDIES = {
    "tag_activation_checkpoint": (
        "activation checkpointing saves nothing in inference, so call the layer without "
        "torch.utils.checkpoint (transformers: model.gradient_checkpointing_disable())"
    ),
    "invoke_subgraph": "call the layer without nested_compile_region",
    "cond": "take the decision outside of the compiled model, or call the layer outside of torch.cond",
}


@dataclass(frozen=True)
class Subgraph:
    """One body of ``node``; ``inputs``: its placeholders and what they stand for outside, if they match."""

    node: Node
    module: GraphModule
    inputs: dict[Node, Node] | None


def subgraphs(node: Node) -> Iterator[Subgraph]:
    """The bodies that a node runs, in the order in which it names them; those of attention masks too."""
    for module in _modules(node):
        inner, outer = placeholders(module), operands(node)
        matched = outer[len(outer) - len(inner) :] if len(inner) <= len(outer) else None
        yield Subgraph(node, module, None if matched is None else dict(zip(inner, matched, strict=True)))


def enclosure_refusal(body: Subgraph) -> str:
    """Why nothing is rewritten in a body, as a near miss says it, with the remedy where there is one."""
    name = getattr(body.node.target, "__name__", str(body.node.target))
    remedy = _REMEDIES.get(name, "call it outside of that operator")
    return f"is inside `{name}`, a graph of its own that is not rewritten: {remedy}"


def operands(node: Node) -> list[Node]:
    """The values that a node passes to its bodies, in order."""
    return [source for source in _arguments(node) if _module_at(source) is None]


def _modules(node: Node) -> Iterator[GraphModule]:
    if node.op == "call_module":
        yield from _graph_modules(_attribute(node))
    elif isinstance(node.target, HigherOrderOperator):
        for source in _arguments(node):
            yield from _graph_modules(_module_at(source))


def _arguments(node: Node) -> list[Node]:
    found: list[Node] = []
    map_arg((node.args, node.kwargs), found.append)
    return found


def _module_at(node: Node) -> nn.Module | None:
    attribute = _attribute(node) if node.op == "get_attr" else None
    return attribute if isinstance(attribute, nn.Module) else None


def _graph_modules(module: Any) -> Iterator[GraphModule]:
    if isinstance(module, GraphModule):
        yield module


def _attribute(node: Node) -> Any:
    owner: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        owner = getattr(owner, name, None)
    return owner
