"""Whether two nodes hold the same values in the same shape, as far as their calls tell."""

from typing import Any

from torch import Tensor
from torch.fx import Node

from oproj_pass.passes.graph.effects import mutated_inputs
from oproj_pass.passes.graph.provenance import value_of


def same_rows(first: Node, second: Node) -> bool:
    """Whether both nodes compute the same of the same inputs: one node, or the same calls one by one."""
    pending, seen = [(first, second)], set[tuple[Node, Node]]()
    while pending:
        pair = pending.pop()
        if pair[0] is pair[1] or pair in seen:
            continue
        seen.add(pair)
        if not _same_call(*pair):
            return False
        pending += zip(pair[0].all_input_nodes, pair[1].all_input_nodes, strict=True)
    return True


def _same_call(first: Node, second: Node) -> bool:
    if first.op not in ("call_function", "call_method"):
        return False
    if (first.op, first.target) != (second.op, second.target):
        return False
    if any(mutated_inputs(first)) or any(mutated_inputs(second)) or _is_random(first):
        return False
    return bool(_shape(first) == _shape(second)) and _pattern(first) == _pattern(second)


def _pattern(node: Node) -> Any:
    """The arguments, with inputs by their number."""
    numbers = {source: index for index, source in enumerate(node.all_input_nodes)}
    return _numbered((node.args, node.kwargs), numbers)


def _numbered(value: Any, numbers: dict[Node, int]) -> Any:
    if isinstance(value, Node):
        return ("input", numbers[value])
    if isinstance(value, dict):
        return tuple((key, _numbered(item, numbers)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(_numbered(item, numbers) for item in value)
    return value


def _shape(node: Node) -> Any:
    value = value_of(node)
    return value.shape if isinstance(value, Tensor) else None


def _is_random(node: Node) -> bool:
    return node.is_impure(impure_random=True)
