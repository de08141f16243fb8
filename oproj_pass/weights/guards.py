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
    guards = context.guards_context.dynamo_guards
    roots = {source: None for node in weights if (source := getattr(node, "_dynamo_source", None))}
    is_reached = _ReachedThrough(roots)
    reached = [
        source
        for source in guards.source_to_guards
        if isinstance(source, ChainedSource) and is_reached(source.base)
    ]
    for source in {**dict.fromkeys(reached), **roots}:
        for guard in guards.source_to_guards.pop(source, ()):
            guards.inner.discard(guard)
    for source in roots:
        guards.add(Guard(source, _guard_signature))


class _ReachedThrough:
    """Tells the sources that are one of ``roots``, or are reached through one.

    A graph's tens of thousands of guards share most links of their chains, so each link is judged once, and
    known by its identity: a hash costs as much as judging.
    """

    def __init__(self, roots: Collection[Source]) -> None:
        self._roots = roots
        self._known: dict[int, bool] = {}  # the guards keep what is identified alive

    def __call__(self, source: Source) -> bool:
        known = self._known.get(id(source))
        if known is None:
            is_linked = isinstance(source, ChainedSource) and self(source.base)
            known = self._known[id(source)] = is_linked or source in self._roots
        return known


def _guard_signature(builder: Any, guard: Guard) -> None:
    weight = builder.get(guard)
    expected = weight.shard.signature if isinstance(weight, Released) else Signature.of(weight)

    def matches(value: Any) -> bool:
        if isinstance(value, Released):
            return value.shard.signature == expected
        return isinstance(value, Tensor) and Signature.of(value) == expected

    description = [f"{guard.name} has the signature {expected}, released or not"]
    builder.get_guard_manager(guard).add_lambda_guard(matches, description, guard.user_stack)
