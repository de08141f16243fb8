"""Builds the passes that only Ascend chips have a use for, with what torch_npu says of the chip.

Works without torch_npu too: then nothing is known of a chip, and each pass says why it leaves a site alone.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from oproj_pass.config import OProjConfig
from oproj_pass.passes import GraphPass, PassRecord, ShardedRegion
from oproj_pass.passes.ascend.mc2 import FuseMatmulReduceScatter
from oproj_pass.passes.ascend.mc2_limits import Device
from oproj_pass.passes.graph.process_groups import process_group
from oproj_pass.passes.overlap.chunks import ChunksInFlight
from oproj_pass.passes.overlap.order import RequireStreamOrder
from oproj_pass.passes.overlap.side_stream import OverlapExchange
from oproj_pass.passes.overlap.streams import NpugraphExStreams, Streams, TorchairStreams

logger = logging.getLogger(__name__)

_STREAMS: dict[str, Callable[[], Streams]] = {
    "auto": NpugraphExStreams,
    "npugraph_ex": NpugraphExStreams,
    "npu": TorchairStreams,
    "torchair": TorchairStreams,
}


def npu_passes(
    regions: list[ShardedRegion], example_inputs: Sequence[Any], config: OProjConfig
) -> list[GraphPass]:
    """The passes over sharded ``regions`` that the options ask for, in order."""
    passes: list[GraphPass] = []
    if config.fuse == "mc2":
        passes.append(FuseMatmulReduceScatter(regions, current_device(), hccl_comm_name))
    if not config.overlap and config.chunks == 1:
        return passes
    streams = _streams(config.inner_backend, example_inputs)
    if config.overlap and streams is None:
        logger.warning(
            "overlap is left out: it needs npugraph_ex or torchair, on npu; found inner_backend = %r, on %s",
            config.inner_backend, ", ".join(_devices(example_inputs)),
        )  # fmt: skip
    return passes if streams is None else [*passes, *_on_streams(regions, streams, config)]


def _on_streams(regions: list[ShardedRegion], streams: Streams, config: OProjConfig) -> list[GraphPass]:
    """Elsewhere a collective runs beside what follows from where it starts to where it is awaited."""
    passes: list[GraphPass] = [OverlapExchange(regions, streams)] if config.overlap else []
    if config.chunks != 1:
        passes.append(ChunksInFlight(regions, streams))
    return [*passes, RequireStreamOrder(streams)]


def current_device() -> Device:
    """The chip that this process computes on, ``Device("", "")`` where there is none."""
    npu = getattr(torch, "npu", None)
    if npu is None or not npu.is_available():
        return Device("", "")
    return Device(npu.get_device_name(), npu.utils.get_cann_version())


def hccl_comm_name(group_name: str) -> str | None:
    """The HCCL communicator of the process group of that c10d name, None where its backend is another."""
    if not hasattr(torch, "npu"):
        return None
    group = process_group(group_name)
    try:
        backend = group._get_backend(torch.device("npu"))
    except RuntimeError:  # the group has no backend for NPUs
        return None
    comm_name = getattr(backend, "get_hccl_comm_name", None)
    return None if comm_name is None else str(comm_name(group.rank()))


def _streams(inner_backend: Any, example_inputs: Sequence[Any]) -> Streams | None:
    """The spelling of streams that the inner backend reads, None if it reads none."""
    inner = getattr(inner_backend, "func", inner_backend)
    compiler = inner if isinstance(inner, str) else inner.__module__.partition(".")[0]
    on_npu = "npu" in _devices(example_inputs)
    return _STREAMS[compiler]() if on_npu and compiler in _STREAMS else None


def _devices(example_inputs: Sequence[Any]) -> list[str]:
    return sorted({value.device.type for value in example_inputs if isinstance(value, Tensor)})


def log_untaken(record: PassRecord) -> None:
    """Say which regions a pass left as they were, and why; nothing of a pass that looked at none."""
    if not record.matches and not record.near_misses:
        return
    logger.info("%s: %d projections", record.name, len(record.matches))
    for miss in record.near_misses:
        logger.info("%s %s", miss.path, miss.reason)
    if record.near_misses:
        first = record.near_misses[0]
        logger.warning(
            "%s: %d projections are left as they were, the first is %s: it %s (all of them at level INFO)",
            record.name, len(record.near_misses), first.path, first.reason,
        )  # fmt: skip
