"""Replaces Dynamo's guards on sharded weights by one that a released parameter passes too.

Dynamo guards a parameter's exact type. Releasing changes the type, so without this every layer that shares a
compiled graph would recompile once, and the ninth would run eager. The new guard checks what the graph relies
on: shape, strides, type and device of the full weight, released or not.
"""

from collections.abc import Collection, Iterable
from typing import Any

from torch import Tensor
from torch._guards import ChainedSource, Guard, Source, TracingContext
from torch.fx import Node

from oproj_pass.weights.released import Released
from oproj_pass.weights.shard import Signature


def accept_released(weights: Iterable[Node]) -> None:
    """Relax the guards of these placeholders; does nothing outside a Dynamo compilation."""
    context = TracingContext.try_get()
    if context is None:
        return
    guards = context.guards_context
    sources = {source: None for node in weights if (source := getattr(node, "_dynamo_source", None))}
    state = guards.copy_graphstate()
    for guard in [*state.dynamo_guards]:  # all sources at once: each alone would be a walk over every guard
        if _leads_to(guard.originating_source, sources):
            state.dynamo_guards.remove(guard)
    guards.restore_graphstate(state)
    for source in sources:
        guards.dynamo_guards.add(Guard(source, _guard_signature))


def _leads_to(source: Source, sources: Collection[Source]) -> bool:
    """Whether ``source`` is one of ``sources``, or is reached through one."""
    while isinstance(source, ChainedSource) and source not in sources:
        source = source.base
    return source in sources


def _guard_signature(builder: Any, guard: Guard) -> None:
    weight = builder.get(guard)
    expected = weight.shard.signature if isinstance(weight, Released) else Signature.of(weight)

    def matches(value: Any) -> bool:
        if isinstance(value, Released):
            return value.shard.signature == expected
        return isinstance(value, Tensor) and Signature.of(value) == expected

    description = [f"{guard.name} has the signature {expected}, released or not"]
    builder.get_guard_manager(guard).add_lambda_guard(matches, description, guard.user_stack)
