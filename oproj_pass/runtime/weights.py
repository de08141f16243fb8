"""Notices weights that moved after capture: graphs read them by address, and would go on reading the old one.

Writing new values in place (``copy_``, ``load_state_dict``) is allowed, because the graph reads them. Watches
what was seen to run: parameters and buffers of the modules that were called, those that Dynamo's graphs were
given (in whichever module of the process they are), and the shards of released weights.
"""

import gc
import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from operator import is_
from typing import Any

from torch import Tensor, UntypedStorage, nn

from oproj_pass.runtime.observe import Observation
from oproj_pass.weights.released import Released

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Slot:
    """One place that holds a weight: ``table[name]``, with its ``path`` for messages and its address."""

    table: dict[str, Any]
    name: str
    path: str
    weight: Tensor
    address: int


class WeightWatch:
    """The addresses of the weights that ran, at the time of capture."""

    def __init__(self, observed: Observation) -> None:
        self._slots = list(_slots_of(observed))
        weights = [slot.weight for slot in self._slots]
        self._tables = [slot.table for slot in self._slots]
        self._names = [slot.name for slot in self._slots]
        self._weights = weights
        self._values = [weight.shard.tensor if isinstance(weight, Released) else weight for weight in weights]
        self._emptied = [weight.shard.storage for weight in weights if isinstance(weight, Released)]
        self._addresses = list(map(Tensor.data_ptr, self._values))

    def moved(self) -> str | None:
        """The first weight that is not where it was, in words."""
        if self._untouched():
            return None
        moved = (slot.path for slot in self._slots if _address(slot.table.get(slot.name)) != slot.address)
        path = next(moved, None)
        return path and (
            f"{path} moved to another address since it was captured. Write new values in place (copy_, "
            "load_state_dict), or build a new runner"
        )

    def _untouched(self) -> bool:
        """Whether nothing at all was done to the weights; quick, for this is asked at every step."""
        return (
            all(map(is_, map(dict.get, self._tables, self._names), self._weights))
            and list(map(Tensor.data_ptr, self._values)) == self._addresses
            and not any(map(UntypedStorage.nbytes, self._emptied))
        )


def _slots_of(observed: Observation) -> Iterator[_Slot]:
    """Every weight of a module that ran, and the places in any other module of what graphs were given."""
    if not (observed.modules or observed.graph_weights):
        return
    paths = _paths()
    ran = {part for module in observed.modules for part in module.modules()}
    slots = [slot for module in ran for slot in _slots(module, paths)]
    yield from slots
    elsewhere = observed.graph_weights.keys() - {id(slot.weight) for slot in slots}
    if elsewhere:
        others = (slot for module in paths if module not in ran for slot in _slots(module, paths))
        found = [slot for slot in others if id(slot.weight) in elsewhere]
        yield from found
        _tell_of_hidden(elsewhere - {id(slot.weight) for slot in found})


def _tell_of_hidden(weights: Collection[int]) -> None:
    """Objects frozen by ``gc.freeze`` cannot be listed, so nobody sees a frozen module get another weight."""
    if weights and gc.get_freeze_count():
        logger.warning(
            "%d weights of the captured graphs are in no module that can be found, since gc.freeze() hides "
            "modules: if one of them moves, replays go on reading the old values. Capture before gc.freeze()",
            len(weights),
        )


def _paths() -> dict[nn.Module, str]:
    """Every module of the process, with its path from the outermost module that it is a part of."""
    modules = [value for value in gc.get_objects() if issubclass(type(value), nn.Module)]
    inner = {child for module in modules for child in module.children()}
    tops = [module for module in modules if module not in inner]
    return {part: path for top in tops for path, part in top.named_modules()}


def _slots(module: nn.Module, paths: Mapping[nn.Module, str]) -> Iterator[_Slot]:
    tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
    for table in tables:
        for name, weight in table.items():
            if weight is not None:
                path = f"{paths.get(module, '')}.{name}".removeprefix(".").removeprefix("_orig_mod.")
                yield _Slot(table, name, path, weight, _address(weight))


def _address(weight: Tensor | None) -> int:
    """Where a weight's values are; released weights that were filled again count as moved."""
    if isinstance(weight, Released):
        return -1 if weight.shard.storage.nbytes() else weight.shard.tensor.data_ptr()
    return 0 if weight is None else weight.data_ptr()
