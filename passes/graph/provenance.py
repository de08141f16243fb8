"""What a node's metadata says of its origin: module path, fake value and real value.

Reads the metadata that Dynamo, AOTAutograd and ``torch.export`` leave on nodes; never guesses from names.
"""

import re
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

_ROOT_OR_CONTAINER = r"^[LG]\['[^']*'\](?:\[\d+\])?|\._(?:modules|parameters|buffers|orig_mod)\b"
_INDEX = r"\[['\"]?([^'\"\]]+)['\"]?\]"
_BESIDE_NAMES = re.compile(f"{_ROOT_OR_CONTAINER}|{_INDEX}")


def normalise_path(path: str) -> str:
    """A dotted module path from any spelling that Dynamo or export uses.

    >>> normalise_path("L['self']._modules['layers']._modules['0'].attn")
    'layers.0.attn'
    >>> normalise_path("L['args'][0].model.layers.0")
    'model.layers.0'
    """
    return _BESIDE_NAMES.sub(lambda found: f".{found[1]}" if found[1] else "", path).strip(".")


def module_path(node: Node) -> str:
    """Dotted path of the innermost module that ran the node; ``""`` for the root or when unknown."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    return normalise_path(next(reversed(stack.values()))[0])


def parent_path(path: str) -> str:
    """The path of the enclosing module, ``""`` at the top."""
    return path.rpartition(".")[0]


def common_path(first: str, second: str) -> str:
    """The innermost module that holds both paths, ``""`` when only the root does."""
    pairs = zip(first.split("."), second.split("."), strict=False)
    return ".".join(name for name, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def is_within(path: str, scope: str) -> bool:
    """Whether ``path`` is ``scope`` or lies below it; everything lies within the root."""
    return not scope or path == scope or path.startswith(f"{scope}.")


def value_of(node: Node) -> Any:
    """The node's fake value: ``val`` on an ATen graph, ``example_value`` on a Dynamo graph, else None."""
    return node.meta.get("val", node.meta.get("example_value"))


def real_value(node: Node) -> Any:
    """The real tensor behind a Dynamo placeholder, while Dynamo still holds it; else None."""
    argument = node.meta.get("grapharg")
    return None if argument is None else getattr(argument, "example", None)


def storage_of(tensor: Tensor) -> torch.UntypedStorage:
    """The tensor's storage, whatever its class overrides."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.untyped_storage()


def ends_at_a_graph_break(gm: GraphModule) -> bool:
    """Whether Dynamo left the model's code after this graph, and goes on in another one."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    return reason is not None and bool(reason.graph_break)


def placeholders(gm: GraphModule) -> list[Node]:
    """The graph's inputs, in the order in which the callable takes them."""
    return [node for node in gm.graph.nodes if node.op == "placeholder"]


def is_tensor(node: Node) -> bool:
    """Whether the node yields a tensor, as far as its metadata tells (an unknown value counts as one)."""
    value = value_of(node)
    return value is None or isinstance(value, Tensor)


def rank_of(node: Node) -> int | None:
    """Number of dimensions of the node's tensor, None when unknown."""
    value = value_of(node)
    return value.dim() if isinstance(value, Tensor) else None


def nbytes(node: Node) -> int:
    """Bytes of the node's tensor when its shape is static, else 0."""
    value = value_of(node)
    if not isinstance(value, Tensor) or any(isinstance(size, torch.SymInt) for size in value.shape):
        return 0
    return value.numel() * value.element_size()


def stored_inputs(operand: Node) -> list[Node]:
    """The placeholders that the operand is computed from, the largest first."""
    found: dict[Node, None] = {}
    pending, seen = [operand], {operand}
    while pending:
        node = pending.pop()
        if node.op == "placeholder":
            found[node] = None
        new = [source for source in node.all_input_nodes if source not in seen]
        seen.update(new)
        pending += new
    return sorted(found, key=nbytes, reverse=True)
