"""Loads a checkpoint so that a full projection weight never exists: each rank reads its own slices.

1. Find from the model's graphs which tensors are cut, and how (``placements``).
2. Judge that the checkpoint fits, before anything is read (``checkpoint``, ``fit``).
3. Read tensor by tensor: a slice becomes the shard of a released weight, anything else is read whole.

The backend then finds weights that are sharded already, and takes them as they are.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oproj_pass.config import OProjConfig
from oproj_pass.loading.checkpoint import Checkpoint, StoredEntry
from oproj_pass.loading.fit import match, require_unsharded
from oproj_pass.loading.placements import Held, find_placements
from oproj_pass.loading.places import Place, places_of
from oproj_pass.tracing.graphs import module_of
from oproj_pass.weights.memory_report import ShardReport, shard_report
from oproj_pass.weights.placement import Placement
from oproj_pass.weights.released import adopt

logger = logging.getLogger(__name__)


def load_sharded(
    model: nn.Module,
    checkpoint_dir: str | PathLike[str],
    config: OProjConfig | Mapping[str, Any] | None = None,
    *,
    example_args: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    device: torch.device | str = "cpu",
    ignore: Sequence[str] = (),
) -> ShardReport:
    """Fill ``model`` from safetensors files, each attention output projection with this rank's slice alone.

    Every rank calls it, then compiles with the same ``config``. The model's parameters may be on ``meta``, so
    that memory never holds more than the loaded tensors and one more; its non-persistent buffers may not.

    Args:
        model: names its tensors as the checkpoint does. What is in it is replaced.
        checkpoint_dir: a folder with ``model.safetensors``, or ``model.safetensors.index.json`` and what it
            lists.
        config: the options of the later ``torch.compile(model, backend="oproj_npu", options=config)``.
        example_args: positional arguments of one decode step, to find the projections by; values and devices
            do not matter. By default one token in ``input_ids``, for a causal model of transformers.
        example_kwargs: its keyword arguments.
        device: where the loaded tensors, and the model's buffers, go.
        ignore: globs of tensors in the checkpoint that the model has no use for.

    Floating-point tensors of two bytes or more get the model's type; any other has to have it already.
    Returns this rank's ``shard_report``. Raises ``ConfigError`` for a model, a checkpoint or a group that do
    not fit, with the rank, file and tensor; ``SiteMismatchError`` if a size above 1 is asked for and there is
    nothing to shard; ``WeightReleasedError`` if the model is sharded already; ``GroupMismatchError`` if the
    group cannot be formed. The model is as it was then.
    """
    config, module, start = OProjConfig.from_options(config), module_of(model), time.perf_counter()
    places = places_of(module)
    require_unsharded(places)
    found = match(module, places, Checkpoint.open(Path(checkpoint_dir)), ignore)
    placements = find_placements(module, config, example_args, example_kwargs or {})
    with torch.inference_mode(False), torch.no_grad():  # an inference tensor could not be written to later
        for number, (place, entry) in enumerate(found):
            if number == 0 or entry.file != found[number - 1][1].file:
                logger.info("%s: loading, %d of %d tensors are done", entry.file, number, len(found))
            place.fill(_load(place, entry, placements, torch.device(device)))
        for place in places:
            if not place.is_saved:
                place.fill(place.tensor.to(device))
    report = shard_report(module)
    logger.info(
        "%s: %d tensors loaded in %.1f s, of %d projections' %.1f MB this rank's %.1f MB",
        checkpoint_dir, len(found), time.perf_counter() - start,
        len(report.weights), report.full_nbytes / 1e6, report.kept_nbytes / 1e6,
    )  # fmt: skip
    return report


def _load(place: Place, entry: StoredEntry, placements: Mapping[str, Held], device: torch.device) -> Tensor:
    """The tensor, or the released weight that stands for it, on ``device``."""
    name = next((name for name in place.names if name in placements), None)
    if name is None:
        tensor = _copy(entry.read(), place.tensor, device)
        return nn.Parameter(tensor, place.tensor.requires_grad) if place.is_parameter else tensor
    held = placements[name]
    slice_ = _copy(_read_part(entry, held.placement), place.tensor, device)
    return adopt(slice_, held.placement, name, entry.shape, held.role, buffer=not place.is_parameter)


def _read_part(entry: StoredEntry, placement: Placement) -> Tensor:
    """This rank's part of the stored tensor; no more of it is read along the first dimension of its mesh."""
    split, group = placement.splits[0], placement.mesh[0]
    extent = entry.shape[split.dim]
    pieces = [
        entry.read(dim=split.dim, start=start, length=length)
        for start, length in split.pieces(extent, group.rank, group.size)
    ]
    part = split.assembled(pieces, extent, group.size)
    return Placement(placement.splits[1:], placement.mesh[1:]).part_of(part)


def _copy(values: Tensor, model: Tensor, device: torch.device) -> Tensor:
    """``values`` in memory of their own, in the type and the order of memory that the model has."""
    order = model.dim_order()
    return torch.empty_permuted(values.shape, order, dtype=model.dtype, device=device).copy_(values)
