"""Hands out each weight's slice by the parameter that a call brings, and releases the full weight if it may.

Never by what was seen at compile time: with graph breaks Dynamo runs layer 0's graph again with layer 1's
weights, and a parameter may be replaced without any recompile. A weight that is new here is judged as a
compilation judges it, and then

- *released*, where nothing else holds its storage: cut, emptied, and from then on its shard serves;
- *kept*, where something does (a state dict kept after loading, a view, one buffer under several weights):
  each call copies the slice from the values of that moment, and a warning says what holds it.

What is kept stays kept, since graphs may have been captured over it; unless the rest of its storage's owners
turn out to be weights that are cut in the same way, which are then one shard.
"""

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from weakref import ReferenceType, ref

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from oproj_pass.errors import ConfigError
from oproj_pass.weights.checks import keep_reason, require_as_compiled, require_cuttable
from oproj_pass.weights.placement import Placement
from oproj_pass.weights.released import Released, dense, release
from oproj_pass.weights.shard import Shard, Signature, Use
from oproj_pass.weights.storages import View, owners_in_words, storage_key, unknown_owners

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cut:
    """How a graph wants the weight of a layer cut, and the full weight that it was compiled for.

    ``role``: see ``Shard``. ``use``: what the graph does with it, to be told of the shard.
    """

    path: str
    placement: Placement
    signature: Signature
    role: str = "oproj"
    use: Use | None = None


@dataclass
class _Arrived:
    """The unreleased weights of one view that calls have brought; ``kept`` once that is decided of them."""

    placement: Placement
    tensors: list[ReferenceType[Tensor]] = field(default_factory=list)
    kept: bool = False

    def owners(self) -> list[Tensor]:
        return [tensor for reference in self.tensors if (tensor := reference()) is not None]


class ShardStore:
    """What this process knows of weights that its compiled graphs cut, and of those that they read in full.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._arrived: dict[View, _Arrived] = {}
        self._readers: dict[StorageWeakRef, str] = {}

    def example_of(self, weight: Tensor, cut: Cut) -> Tensor:
        """This rank's slice of ``weight`` to compile with: a copy, unless the weight is released already.

        Changes nothing. Raises ``ConfigError`` if the weight was sharded in another way.
        """
        if isinstance(weight, Released):
            _require_placement(weight.shard, cut.placement)
            return weight.shard.tensor
        return dense(cut.placement.part_of(weight))

    def slices_of(self, weights: Sequence[Tensor], cuts: Sequence[Cut]) -> list[Tensor]:
        """This rank's slices of the weights of one call, released now if they are new and may be.

        Raises ``ConfigError`` for a weight that is sharded in another way, or is not what the graph was
        compiled for; ``WeightReleasedError`` for one whose values are gone.
        """
        if not all(isinstance(weight, Released) for weight in weights):
            with self._lock:  # another thread may just have released them
                return self._slices_of_new(weights, cuts)
        return [_slice_of_released(weight, cut) for weight, cut in zip(weights, cuts, strict=True)]  # type: ignore[arg-type]

    def _slices_of_new(self, weights: Sequence[Tensor], cuts: Sequence[Cut]) -> list[Tensor]:
        pairs = list(zip(weights, cuts, strict=True))
        for weight, cut in pairs:  # all of them, before any is released
            require_as_compiled(weight, cut.signature, cut.path)
            require_cuttable(weight, cut.path)
        unreleased = [
            (weight, cut, View.of(weight)) for weight, cut in pairs if not isinstance(weight, Released)
        ]
        if any(view not in self._arrived for *_, view in unreleased):
            self._forget_dead()
        undecided = [(weight, cut) for weight, cut, view in unreleased if self._arrives(weight, cut, view)]
        kept = [
            (weight, cut.path, reason) for weight, cut in undecided if (reason := self._decide(weight, cut))
        ]
        if kept:
            self._warn(kept)
        return [
            _slice_of_released(weight, cut)
            if isinstance(weight, Released)
            else dense(cut.placement.part_of(weight))
            for weight, cut in pairs
        ]

    def _arrives(self, weight: Tensor, cut: Cut, view: View) -> bool:
        """Note an unreleased weight as one of its storage's owners. Whether it is still to be decided on."""
        arrived = self._arrived.setdefault(view, _Arrived(cut.placement))
        if any(weight is owner for owner in arrived.owners()):
            return not arrived.kept
        arrived.tensors.append(ref(weight))
        return True

    def _decide(self, weight: Tensor, cut: Cut) -> str | None:
        """Release the weight with the others of its view, or say why it is kept."""
        if isinstance(weight, Released):  # it was one of the others
            return None
        view = View.of(weight)
        arrived = self._arrived[view]
        reason = self._reason_to_keep(weight, arrived, cut)
        arrived.kept = reason is not None
        if not arrived.kept:
            release(arrived.owners(), cut.path, cut.placement, cut.role)
            del self._arrived[view]
        return reason

    def _reason_to_keep(self, weight: Tensor, arrived: _Arrived, cut: Cut) -> str | None:
        if (reason := keep_reason(weight)) is not None:
            return reason
        if cut.placement != arrived.placement:
            return "has a weight that another graph cuts in another way"
        if (reader := self.reader_of(weight)) is not None:
            return f"has a weight that another compiled graph reads in full (`{reader}`)"
        others = unknown_owners(weight, arrived.owners())
        return f"has a weight whose storage has {others} other owners" if others else None

    def _warn(self, kept: Sequence[tuple[Tensor, str, str]]) -> None:
        for _, path, reason in kept:
            logger.info("%s is kept in full: it %s", path, reason)
        weight, path, reason = kept[0]
        owners = owners_in_words(weight, self._arrived[View.of(weight)].owners())
        logger.warning(
            "%d weights are kept in full, and every step copies their slices. The first is %s: it %s%s. To "
            "release them, drop what holds them before the first compiled step (all of them at level INFO)",
            len(kept), path, reason, owners,
        )  # fmt: skip

    def record_readers(self, weights: Iterable[tuple[Tensor, str]]) -> None:
        """Note that a compiled graph reads these weights in full, each for the named input."""
        with self._lock:
            self._forget_dead()
            self._readers.update((storage_key(weight), name) for weight, name in weights)

    def reader_of(self, weight: Tensor) -> str | None:
        """Who reads ``weight`` in full in some compiled graph of this process."""
        return self._readers.get(storage_key(weight))

    def _forget_dead(self) -> None:
        self._readers = {key: name for key, name in self._readers.items() if not key.expired()}  # type: ignore[no-untyped-call]
        self._arrived = {view: owners for view, owners in self._arrived.items() if not view.storage.expired()}  # type: ignore[no-untyped-call]


def _slice_of_released(weight: Released, cut: Cut) -> Tensor:
    require_as_compiled(weight, cut.signature, cut.path)
    _require_placement(weight.shard, cut.placement)
    if cut.use is not None:
        weight.shard.manners[cut.use.rows] = cut.use.manner
    return weight.shard.tensor


def _require_placement(shard: Shard, placement: Placement) -> None:
    if shard.placement != placement:
        raise ConfigError(
            f"{shard.describe()} is already sharded {shard.placement.describe()}; this graph needs it "
            f"{placement.describe()}. Compile a model with one size per role."
        )
