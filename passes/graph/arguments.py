"""Reads the arguments of calls, by position or by name."""

from functools import lru_cache
from typing import Any

import torch
from torch.fx import Node


def argument(node: Node, position: int, name: str, default: Any = None) -> Any:
    """An argument of a call that is made by position or by name; ``default`` where it is left out."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def schema_of(target: Any) -> torch.FunctionSchema | None:
    """The schema of an operator, of its first overload where it names none; None for any other target."""
    if isinstance(target, torch._ops.OpOverloadPacket):
        target = getattr(target, target.overloads()[0])  # type: ignore[no-untyped-call]
    return target._schema if isinstance(target, torch._ops.OpOverload) else None


def named_argument(node: Node, name: str) -> Any:
    """The argument of an operator that its schema calls ``name``; None where it has none of that name."""
    names = _argument_names(node.target)
    return argument(node, names.index(name), name) if name in names else None


@lru_cache(maxsize=1024)  # a graph calls few operators in thousands of nodes
def _argument_names(target: Any) -> tuple[str, ...]:
    schema = schema_of(target)
    return tuple(argument.name for argument in schema.arguments) if schema else ()
