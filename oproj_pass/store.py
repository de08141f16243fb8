"""Keeps each weight's shard, and hands it out by the parameter that a call brings.

Never by what was seen at compile time: with graph breaks Dynamo runs layer 0's graph again with layer 1's
weights, and a parameter may be replaced without any recompile. A weight that is new here is sharded on
arrival; one whose values came back is sharded again; so a call is never served a stale slice. Weights are
keyed by storage: two parameters over one storage are one shard.
"""

import logging
from collections.abc import Iterable
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from oproj_pass.errors import ConfigError, WeightReleasedError
from oproj_pass.released import Layout, Released, ReleasedBuffer, ReleasedParameter, Shard, Signature

logger = logging.getLogger(__name__)


class ShardStore:
    """The shards of this process, and which full weights its compiled graphs still read."""

    def __init__(self) -> None:
        self._shards: WeakValueDictionary[StorageWeakRef, Shard] = WeakValueDictionary()
        self._readers: dict[StorageWeakRef, str] = {}

    def example_of(self, weight: Tensor, layout: Layout, path: str) -> Tensor:
        """This rank's slice of ``weight`` to compile with: a copy, unless the weight is released already.

        Raises ``ConfigError`` if the weight was sharded in another way.
        """
        if isinstance(weight, Released):
            return self.shard_of(weight, layout, path)
        return _dense(layout.slice_of(weight))

    def shard_of(self, weight: Tensor, layout: Layout, path: str) -> Tensor:
        """This rank's slice of ``weight``. Releases the full values if they are still there.

        Raises ``ConfigError`` if the weight was sharded in another way, ``WeightReleasedError`` if another
        compiled graph reads it in full.
        """
        if isinstance(weight, Released):
            shard = weight.shard
            if shard.storage.nbytes():
                _take_back(shard)
        else:
            shard = self._shards.get(_key(weight)) or self._cut(weight, layout, path)
            _release(weight, shard)
        if shard.layout != layout:
            raise ConfigError(
                f"{shard.describe()} is already sharded along dimension {shard.layout.dim} over ranks "
                f"{list(shard.layout.group.ranks)}; this graph needs dimension {layout.dim} over ranks "
                f"{list(layout.group.ranks)}. Compile with one oproj_tensor_parallel_size per model."
            )
        return shard.tensor

    def _cut(self, weight: Tensor, layout: Layout, path: str) -> Shard:
        storage = weight.untyped_storage()
        reader = self.reader_of(weight)
        if reader is not None:
            raise WeightReleasedError(
                f"{path}: its weight cannot be released, `{reader}` reads it in full in another compiled "
                "graph. Untie the two weights, or exclude this module."
            )
        shard = Shard(path, layout, _dense(layout.slice_of(weight)), Signature.of(weight), storage)
        self._shards[_key(weight)] = shard
        return shard

    def record_readers(self, weights: Iterable[tuple[Tensor, str]]) -> None:
        """Note that a compiled graph reads these weights in full, each for the named input."""
        self._readers = {ref: name for ref, name in self._readers.items() if not ref.expired()}  # type: ignore[no-untyped-call]
        self._readers.update((_key(weight), name) for weight, name in weights)

    def reader_of(self, weight: Tensor) -> str | None:
        """Who reads ``weight`` in full in some compiled graph of this process."""
        return self._readers.get(_key(weight))


def adopt(slice_: Tensor, layout: Layout, path: str, *, buffer: bool = False) -> Released:
    """A released parameter, or buffer, whose shard is ``slice_`` itself, which may still be unloaded.

    For weights of which a rank only ever holds its part. It has the metadata of the full weight: the shape
    of ``slice_`` with ``layout.dim`` as many times as the group has ranks, and its order in memory.
    """
    shape = list(slice_.shape)
    shape[layout.dim] *= layout.group.size
    order = slice_.dim_order()
    full = torch.empty_permuted(shape, order, dtype=slice_.dtype, device=slice_.device)  # never touched
    full.untyped_storage().resize_(0)
    weight = full if buffer else nn.Parameter(full, requires_grad=False)
    _become_released(weight, Shard(path, layout, slice_, Signature.of(weight), weight.untyped_storage()))
    return weight  # type: ignore[return-value]


def _dense(slice_: Tensor) -> Tensor:
    """A copy of a slice in memory of its own, in the order of memory of the full weight."""
    with torch.inference_mode(False):  # an inference tensor could not be written to later
        return slice_.clone()


def _key(weight: Tensor) -> StorageWeakRef:
    """Identity of the weight's storage; never that of a later storage at the same address."""
    return StorageWeakRef(weight.untyped_storage())  # type: ignore[no-untyped-call]


def _take_back(shard: Shard) -> None:
    """Someone filled the emptied storage again: its values are the newer ones."""
    full = torch.empty(0, dtype=shard.signature.dtype, device=shard.signature.device)
    full.set_(shard.storage, 0, shard.signature.shape, shard.signature.stride)
    shard.write(full)
    shard.storage.resize_(0)
    logger.info("%s: new values found in the released weight, sharded again", shard.path)


def _release(weight: Tensor, shard: Shard) -> None:
    storage = weight.untyped_storage()
    if storage.resizable():
        storage.resize_(0)
    else:  # memory-mapped or shared: let go of it, and stand on an empty storage of the same shape
        empty = torch.empty_strided(weight.shape, weight.stride(), dtype=weight.dtype, device=weight.device)
        empty.untyped_storage().resize_(0)
        weight.data = empty
    shard.storage = weight.untyped_storage()
    _become_released(weight, shard)


def _become_released(weight: Tensor, shard: Shard) -> None:
    weight.__class__ = ReleasedParameter if isinstance(weight, nn.Parameter) else ReleasedBuffer
    weight.shard = shard  # type: ignore[attr-defined]
