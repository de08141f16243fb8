"""Notices weights that moved after capture: graphs read them by address, and would go on reading the old one.

Writing new values in place (``copy_``, ``load_state_dict``) is allowed, because the graph reads them. Watches
parameters and buffers of the modules that a callable holds, and the shards of released weights.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from oproj_pass.groups import ShardGroup
from oproj_pass.released import Released
from oproj_pass.report import stored_tensors


def modules_of(fn: Callable[..., Any]) -> tuple[nn.Module, ...]:
    """The modules that ``fn`` is, is a method of, wraps, closes over or names as a global."""
    return tuple(dict.fromkeys(_modules(fn)))


def _modules(fn: Any) -> Iterator[nn.Module]:
    if isinstance(fn, nn.Module):
        yield fn
    elif isinstance(fn, functools.partial):
        for value in (fn.func, *fn.args, *fn.keywords.values()):
            yield from _modules(value)
    elif inspect.ismethod(fn):
        yield from _modules(fn.__self__)
    elif hasattr(fn, "_torchdynamo_orig_callable"):
        yield from _modules(fn._torchdynamo_orig_callable)
    elif inspect.isfunction(fn):
        names = inspect.getclosurevars(fn)
        for value in (*names.nonlocals.values(), *names.globals.values()):
            if isinstance(value, nn.Module) or hasattr(value, "_torchdynamo_orig_callable"):
                yield from _modules(value)


@dataclass(frozen=True)
class _Slot:
    """One place that holds a weight: ``table[name]``, with its ``path`` for messages and its address."""

    table: dict[str, Tensor | None]
    name: str
    path: str
    address: int


class WeightWatch:
    """The addresses of a callable's weights at the time of capture."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._slots = [slot for module in modules_of(fn) for slot in _slots(module)]
        self._cells = [(slot.table, slot.name, slot.address) for slot in self._slots]

    def moved(self) -> str | None:
        """The first weight that is not where it was, in words."""
        for position, (table, name, address) in enumerate(self._cells):
            if _address(table.get(name)) != address:
                return (
                    f"{self._slots[position].path} moved to another address since it was captured. Write new "
                    "values in place (copy_, load_state_dict), or build a new runner"
                )
        return None


def shard_groups(fn: Callable[..., Any]) -> set[ShardGroup]:
    """The groups that weights of ``fn`` are sharded over."""
    weights = (weight for module in modules_of(fn) for _, weight in stored_tensors(module))
    return {weight.shard.layout.group for weight in weights if isinstance(weight, Released)}


def _slots(module: nn.Module) -> Iterator[_Slot]:
    for path, part in module.named_modules():
        for table in (part._parameters, part._buffers):
            for name, weight in table.items():
                if weight is not None:
                    where = f"{path}.{name}".removeprefix(".").removeprefix("_orig_mod.")
                    yield _Slot(table, name, where, _address(weight))


def _address(weight: Tensor | None) -> int:
    """Where a weight's values are; released weights that were filled again count as moved."""
    if isinstance(weight, Released):
        return -1 if weight.shard.storage.nbytes() else weight.shard.tensor.data_ptr()
    return 0 if weight is None else weight.data_ptr()
