"""Notices weights that moved after capture: graphs read them by address, and would go on reading the old one.

Writing new values in place (``copy_``, ``load_state_dict``) is allowed, because the graph reads them. Watches
what was seen to run: parameters and buffers of the modules that were called, those that Dynamo's graphs were
given (in whichever module of the process they are), and the shards of released weights.
"""

import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from oproj_pass.released import Released
from oproj_pass.runtime.observe import Observation


@dataclass(frozen=True)
class _Slot:
    """One place that holds a weight: ``table[name]``, with its ``path`` for messages and its address."""

    table: Mapping[str, Tensor | None]
    name: str
    path: str
    address: int


class WeightWatch:
    """The addresses of the weights that ran, at the time of capture."""

    def __init__(self, observed: Observation) -> None:
        self._slots = list(_slots_of(observed))
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


def _slots_of(observed: Observation) -> Iterator[_Slot]:
    """Every weight of a module that ran, and the places in any other module of what graphs were given."""
    paths = _paths()
    ran = {part for module in observed.modules for part in module.modules()}
    slots = [slot for module in ran for slot in _slots(module, paths)]
    yield from slots
    elsewhere = observed.graph_weights.keys() - {id(slot.table[slot.name]) for slot in slots}
    if elsewhere:
        others = (slot for module in paths if module not in ran for slot in _slots(module, paths))
        yield from (slot for slot in others if id(slot.table[slot.name]) in elsewhere)


def _paths() -> dict[nn.Module, str]:
    """Every module of the process, with its path from the outermost module that it is a part of."""
    modules = [value for value in gc.get_objects() if issubclass(type(value), nn.Module)]
    inner = {child for module in modules for child in module.children()}
    tops = [module for module in modules if module not in inner]
    return {part: path for top in tops for path, part in top.named_modules()}


def _slots(module: nn.Module, paths: Mapping[nn.Module, str]) -> Iterator[_Slot]:
    for table in (module._parameters, module._buffers):
        for name, weight in table.items():
            if weight is not None:
                path = f"{paths.get(module, '')}.{name}".removeprefix(".").removeprefix("_orig_mod.")
                yield _Slot(table, name, path, _address(weight))


def _address(weight: Tensor | None) -> int:
    """Where a weight's values are; released weights that were filled again count as moved."""
    if isinstance(weight, Released):
        return -1 if weight.shard.storage.nbytes() else weight.shard.tensor.data_ptr()
    return 0 if weight is None else weight.data_ptr()
