"""Who else holds a weight's storage, and how a storage is emptied so that nothing reads it unseen."""

import gc
import sys
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C import _set_throw_on_mutable_data_ptr, _storage_Use_Count
from torch.multiprocessing.reductions import StorageWeakRef

from oproj_pass.weights.shard import Signature

_NAMED = 3


class View(NamedTuple):
    """Which values a tensor shows: two tensors of one view are one weight.

    ``storage`` identifies the storage, never a later one at the same address.
    """

    storage: StorageWeakRef
    offset: int
    signature: Signature

    @classmethod
    def of(cls, weight: Tensor) -> "View":
        """The view of a tensor with storage."""
        return cls(storage_key(weight), int(weight.storage_offset()), Signature.of(weight))


def storage_key(weight: Tensor) -> StorageWeakRef:
    """Identity of the weight's storage; never that of a later storage at the same address."""
    return StorageWeakRef(weight.untyped_storage())  # type: ignore[no-untyped-call]


def unknown_owners(weight: Tensor, known: Collection[Tensor]) -> int:
    """How many tensors besides ``known`` hold the weight's storage, NumPy's arrays and views among them.

    ``known`` holds ``weight`` itself; a tensor that nothing but a known view of it keeps alive is known too.
    Counts owners of the storage, in C++ too; not those of memory that other storages map as well, as a file's
    is: ``empty`` leaves such memory to them.
    """
    storage = weight.untyped_storage()  # itself one of the owners that are counted
    return _storage_Use_Count(storage._cdata) - 1 - len(known) - _private_bases(known)


def _private_bases(tensors: Collection[Tensor]) -> int:
    """How many tensors these are views of that nothing else holds: of ``x.t()`` kept alone, ``x``."""
    mine, found = {id(tensor) for tensor in tensors}, set()
    for tensor in tensors:
        base = tensor._base
        if (
            base is not None
            and id(base) not in mine
            and sys.getrefcount(base) <= _references_of_a_lone_base()
        ):
            found.add(id(base))
    return len(found)


@cache
def _references_of_a_lone_base() -> int:
    """References to a base that only its view holds, counted as above: how many torch keeps is its affair."""
    with torch.inference_mode(False):
        view = torch.empty(1).view(1)
    base = view._base
    return sys.getrefcount(base)


def owners_in_words(weight: Tensor, known: Collection[Tensor]) -> str:
    """Where Python holds the tensors that ``unknown_owners`` counts, as far as that can be seen. Slow."""
    storage, mine = weight.untyped_storage()._cdata, {id(tensor) for tensor in known}
    found = [
        thing
        for thing in gc.get_objects()
        if type(thing) in (Tensor, nn.Parameter)
        and id(thing) not in mine
        and torch._C._has_storage(thing)
        and thing.untyped_storage()._cdata == storage
    ]
    names = list(dict.fromkeys(name for tensor in found for name in _names(tensor)))
    return f" (by name: {', '.join(names[:_NAMED])})" if names else ""


def _names(tensor: Tensor) -> Iterator[str]:
    for holder in gc.get_referrers(tensor):
        if isinstance(holder, dict):
            yield from (f"`{name}`" for name, value in holder.items() if value is tensor)


def empty(weight: Tensor) -> None:
    """Give the weight an empty storage, its own or, where that belongs to a file or to NumPy, a new one.

    C++ that asks for the memory to write to (a collective, DLPack) then raises instead of crashing.
    """
    if not weight.untyped_storage().resizable():
        weight.data = torch.empty_strided(
            weight.shape, weight.stride(), dtype=weight.dtype, device=weight.device
        )
    weight.untyped_storage().resize_(0)
    _set_throw_on_mutable_data_ptr(weight)


def holds_values(weight: Tensor) -> bool:
    """Whether the storage reaches as far as the tensor's shape says."""
    last: Any = sum((size - 1) * step for size, step in zip(weight.shape, weight.stride(), strict=True))
    needed = (weight.storage_offset() + last + 1) * weight.element_size()
    return bool(weight.untyped_storage().nbytes() >= needed)
