"""In which order a callable reads its released weights, found by a run over zeros that exchanges nothing.

Weights that are alive at once (a weight and its scales, two operands of one operation) are gathered together.
Refused, in words: a callable that keeps a full weight, and one that communicates by itself, since ranks of
unequal rows would not match there.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from oproj_pass.errors import ConfigError
from oproj_pass.passes.graph.collectives import NAMESPACES
from oproj_pass.weights.shard import Shard
from oproj_pass.weights.stand_in import reads_served_by
from oproj_pass.weights.storages import unknown_owners

Order = tuple[tuple[Shard, ...], ...]
_COMMUNICATES = ("c10d", *NAMESPACES)


def order_of_reads(call: Callable[[], Any]) -> Order:
    """What ``call`` reads, in order; weights that it needs at once are one entry.

    Raises ``ConfigError`` if it communicates, or goes on holding full values; and what ``call`` raises.
    """
    rehearsal = _Rehearsal()
    with reads_served_by(rehearsal.full_values), _NoCollectives():  # type: ignore[no-untyped-call]
        call()
    rehearsal.require_nothing_kept()
    return tuple(map(tuple, rehearsal.entries))


def digest(order: Order) -> int:
    """Equal on ranks that gather equal weights in an equal order."""
    lines = [
        f"{shard.path} {shard.signature.shape} {shard.signature.dtype} {tuple(shard.tensor.shape)} "
        f"{shard.placement.splits} {shard.placement.holders.size} {len(entry)}"
        for entry in order
        for shard in entry
    ]
    return zlib.crc32("\n".join(lines).encode())


class _Rehearsal:
    """Brings zeros, and notes who asks and what is still held then."""

    def __init__(self) -> None:
        self.entries: list[list[Shard]] = []
        self._held: dict[Shard, Tensor] = {}

    def full_values(self, shards: Sequence[Shard]) -> list[Tensor]:
        new = [shard for shard in shards if shard not in self._held]
        if new and len(new) == len(shards) and not self._kept():
            self._held = {}
            self.entries.append([])
        if new:
            self.entries[-1] += new
            self._held |= {shard: _zeros(shard) for shard in new}
        return [self._held[shard] for shard in shards]

    def require_nothing_kept(self) -> None:
        if kept := self._kept():
            raise ConfigError(
                f"{kept[0].path}: the model keeps the full weight, or a view of it, after its forward, and a "
                "gathered weight gives its memory to the next one. Read the parameter anew in each forward"
            )

    def _kept(self) -> list[Shard]:
        return [shard for shard, full in self._held.items() if unknown_owners(full, [full])]


def _zeros(shard: Shard) -> Tensor:
    signature = shard.signature
    with torch.inference_mode(False):
        full = torch.empty_strided(
            signature.shape, signature.stride, dtype=signature.dtype, device=signature.device
        )
        return full.zero_()


class _NoCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operators that communicate, before they do."""

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "namespace", "") in _COMMUNICATES:
            raise ConfigError(
                f"the model communicates by itself ({func}), where ranks of unequal rows would not match"
            )
        return func(*args, **(kwargs or {}))
