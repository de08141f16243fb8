"""Replaces Dynamo's guards on sharded weights by one that a released parameter passes too.

Dynamo guards a parameter's exact type. Releasing changes the type, so without this every layer that shares a
compiled graph would recompile once, and the ninth would run eager. The new guard checks what the graph relies
on: shape, strides, type and device of the full weight, released or not.
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch._guards import Guard, TracingContext
from torch.fx import Node

from oproj_pass.weights.released import Released
from oproj_pass.weights.shard import Signature


def accept_released(weights: Iterable[Node]) -> None:
    """Relax the guards of these placeholders; does nothing outside a Dynamo compilation."""
    context = TracingContext.try_get()
    if context is None:
        return
    guards = context.guards_context.dynamo_guards
    for weight in weights:
        source = getattr(weight, "_dynamo_source", None)
        if source is not None:
            guards.remove_guards_with_source(source)
            guards.add(Guard(source, _guard_signature))


def _guard_signature(builder: Any, guard: Guard) -> None:
    weight = builder.get(guard)
    expected = weight.shard.signature if isinstance(weight, Released) else Signature.of(weight)

    def matches(value: Any) -> bool:
        if isinstance(value, Released):
            return value.shard.signature == expected
        return isinstance(value, Tensor) and Signature.of(value) == expected

    description = [f"{guard.name} has the signature {expected}, released or not"]
    builder.get_guard_manager(guard).add_lambda_guard(matches, description, guard.user_stack)
