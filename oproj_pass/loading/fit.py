"""Judges, before anything is read, whether a checkpoint fits a model: each tensor's place, shape and type."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice

import torch
from torch import nn

from oproj_pass.errors import ConfigError, WeightReleasedError
from oproj_pass.loading.checkpoint import Checkpoint, StoredEntry, here
from oproj_pass.loading.places import Place
from oproj_pass.weights.released import Released

_LISTED = 5
_CONVERTED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def match(
    model: nn.Module, places: Sequence[Place], checkpoint: Checkpoint, ignore: Iterable[str]
) -> list[tuple[Place, StoredEntry]]:
    """Each place that the checkpoint fills, with what fills it, file by file.

    ``ignore``: globs of tensors in the checkpoint that the model has no use for. Raises ``ConfigError`` for
    any tensor that is missing, unexpected, or of another shape or type.
    """
    _require_restorable(places)
    saved = [place for place in places if place.is_saved]
    entries = checkpoint.entries
    sources = [next((name for name in place.names if name in entries), None) for place in saved]
    missing = [place.names[0] for place, source in zip(saved, sources, strict=True) if source is None]
    unexpected = [*_unexpected(model, places, checkpoint, ignore)]
    if missing:
        also = f" It holds {_few(unexpected)}, of which the model has none." if unexpected else ""
        raise ConfigError(
            f"{here(checkpoint.folder)}: {_few(missing)} missing, required by {type(model).__name__}.{also} "
            "Names have to be the model's own; a tensor that shares another's values has to be tied to it "
            "first (transformers: model.tie_weights())."
        )
    if unexpected:
        raise ConfigError(
            f"{here(checkpoint.folder)}: {_few(unexpected)} unexpected, {type(model).__name__} has no such "
            "tensor. Load the checkpoint of this model, or name what it has no use for in `ignore`, as globs."
        )
    found = [(place, entries[name]) for place, name in zip(saved, sources, strict=True) if name is not None]
    for place, entry in found:
        _require_alike(place, entry)
        _require_tied(place, entry, entries)
    return sorted(found, key=lambda pair: pair[1].file)


def require_unsharded(places: Iterable[Place]) -> None:
    """Raise ``WeightReleasedError`` if a weight of the model is sharded already."""
    for place in places:
        if isinstance(place.tensor, Released):
            raise WeightReleasedError(
                f"{place.names[0]} is already sharded: load_sharded fills a model that has not run yet. "
                "Give a sharded model new values with model.load_state_dict, which takes this rank's slices."
            )


def _require_restorable(places: Iterable[Place]) -> None:
    lost = [place.names[0] for place in places if place.tensor.is_meta and not place.is_saved]
    if lost:
        raise ConfigError(
            f"{_few(lost)} on the meta device and in no checkpoint: a non-persistent buffer, whose values "
            "the model computes when it is built. Build the model with only its parameters on meta "
            "(accelerate: `with init_empty_weights():`, then model.tie_weights()), or give the buffer its "
            "values first."
        )


def _unexpected(
    model: nn.Module, places: Sequence[Place], checkpoint: Checkpoint, ignore: Iterable[str]
) -> Iterator[str]:
    known = {name for place in places for name in place.names}
    patterns = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()  # a model of transformers
    for name in checkpoint.entries:
        is_ignored = any(fnmatchcase(name, glob) for glob in ignore) or any(
            re.search(pattern, name) for pattern in patterns
        )
        if name not in known and not is_ignored:
            yield name


def _require_alike(place: Place, entry: StoredEntry) -> None:
    tensor = place.tensor
    if tuple(tensor.shape) != entry.shape:
        raise ConfigError(
            f"{entry.where} has shape {list(entry.shape)}, required: {list(tensor.shape)}, the model's. The "
            "checkpoint belongs to a model of another configuration."
        )
    if tensor.dtype != entry.dtype and not {tensor.dtype, entry.dtype} <= {*_CONVERTED}:
        raise ConfigError(
            f"{entry.where} is stored as {entry.dtype}, required: {tensor.dtype}, the model's. Only float16, "
            "bfloat16, float32 and float64 are converted into each other; a quantised tensor is loaded as it "
            "is, so build the model with the checkpoint's quantisation."
        )


def _require_tied(place: Place, entry: StoredEntry, entries: Mapping[str, StoredEntry]) -> None:
    """A checkpoint may hold a shared tensor under several of its names, if they agree."""
    for name in place.names:
        other = entries.get(name, entry)
        if other is not entry and not torch.equal(other.read(), entry.read()):
            raise ConfigError(
                f"{other.where} differs from {entry.name}, and the model shares one tensor between the two: "
                "untie them in the model's configuration, or load a checkpoint that has them alike."
            )


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(islice(names, _LISTED)) + more
