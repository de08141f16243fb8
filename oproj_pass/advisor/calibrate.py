"""Fits a profile to the machine that this process group runs on: collectives by size and N, and products."""

import platform
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import product
from typing import Any

import torch
import torch.distributed as dist

from oproj_pass.advisor.figures import Basis, Figure
from oproj_pass.advisor.interpolate import leave_one_out
from oproj_pass.advisor.measure import Clock, collective_calls, group_sizes, product_call
from oproj_pass.advisor.profile import ANY_FRAMEWORK, CollectiveTable, GemmTable, Profile
from oproj_pass.errors import ConfigError
from oproj_pass.explanation.traffic import COMMUNICATION_BUFFER_NBYTES

__all__ = ["Grid", "calibrate"]


_KINDS = {torch.bfloat16: "16bit", torch.float16: "16bit", torch.float32: "32bit"}


@dataclass(frozen=True)
class Grid:
    """What is measured: message sizes, rows of a product, and its features (N and K alike).

    The rows are close, for sharding multiplies N times as many rows by an N-th of a weight: where that gains
    nothing, two errors of interpolation would be the difference.
    """

    nbytes: tuple[int, ...] = tuple(2**power for power in range(10, 24, 2))
    rows: tuple[int, ...] = tuple(2**power for power in range(9))
    features: tuple[int, ...] = (256, 1024, 2048, 4096)

    def num_measurements(self, world: int) -> int:
        """For a progress bar."""
        messages = len(self.nbytes) + len(self.fronts) - 1
        return len(group_sizes(world)) * messages + len(self.products()) + 2

    @property
    def fronts(self) -> list[tuple[int, int, int]]:
        """m, n and k of the products that collectives are timed behind, small to large.

        The last has few rows and a large weight, as a decode layer has between its exchanges.
        """
        rows, middle = self.rows[len(self.rows) // 2], len(self.features) // 2
        wide = [(rows, features, self.features[-1]) for features in self.features[: middle + 1]]
        return [(rows, self.features[0], self.features[0]), *wide]

    def products(self) -> list[tuple[int, int, int]]:
        """m, n and k of every product, k varying fastest."""
        return list(product(self.rows, self.features, self.features))


DEFAULT_GRID = Grid()


def calibrate(
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    grid: Grid = DEFAULT_GRID,
    advance: Callable[[], Any] = lambda: None,
) -> Profile:
    """The profile of this world's machine; every rank calls it and gets the same.

    ``dtype``: of the weights, to time products and collectives in. ``grid``: what to measure. ``advance``:
    called after each measurement.

    Raises ``ConfigError`` where there is no process group of at least two ranks.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() < 2:
        raise ConfigError(
            "calibrating needs a process group of at least 2 ranks: "
            "torchrun --nproc-per-node 2 -m oproj_pass.cli calibrate mine.json"
        )
    clock, source = Clock(device), _source(device)
    collectives = _collectives(clock, grid, dtype, source, advance)
    gemms = _products(clock, grid, dtype, source, advance)
    small = clock.us(lambda: torch.ones(64, device=device).clone())
    advance()
    widest = grid.features[-1]
    peak = widest**2 * dtype.itemsize / clock.us(product_call(1, widest, widest, dtype, device)) / 1e3
    advance()
    largest = 2 * grid.rows[-1] * widest**2 / gemms.us[-1] / 1e6

    def measured(value: float) -> Figure:
        return Figure(value=value, basis=Basis.MEASURED, source=source)

    profile = Profile(
        name=name,
        title=f"{_device_name(device)}, {dist.get_backend()}, {dist.get_world_size()} ranks",
        devices=() if device.type == "cpu" else (_device_name(device),),
        ranks_a_node=dist.get_world_size(),
        memory_gbs=measured(peak),
        memory_efficiency=measured(1.0),
        tflops={kind: measured(largest) for kind in ("16bit", "8bit", "32bit")},
        gemm_us=measured(small),
        kernel_us=measured(small),
        communicator_nbytes=_communicator(device),
        collectives=collectives,
        gemms=(gemms,),
    )
    found: list[Any] = [profile.model_dump_json()]
    dist.broadcast_object_list(found)  # ranks measure differently: all take rank 0's
    return Profile.model_validate_json(found[0])


def _collectives(
    clock: Clock, grid: Grid, dtype: torch.dtype, source: str, advance: Callable[[], Any]
) -> dict[Any, CollectiveTable]:
    """Each collective's time behind a product, where a step has it, and of the smallest behind others."""
    fronts = [product_call(*shape, dtype, clock.device) for shape in grid.fronts]
    behind_us = [clock.us(front) for front in fronts]
    *smaller, usual = fronts
    messages = [*((usual, nbytes) for nbytes in grid.nbytes), *((front, grid.nbytes[0]) for front in smaller)]
    times: dict[Any, dict[int, list[float]]] = {}
    for size in group_sizes(dist.get_world_size()):
        group = _subgroup(size)
        for front, nbytes in messages:
            for collective, call in collective_calls(size, nbytes, dtype, clock.device, group):
                found = clock.us_behind(front, call, group)
                times.setdefault(collective, {}).setdefault(size, []).append(found)
            advance()
    return {name: _table(found, behind_us, grid, source) for name, found in times.items()}


def _subgroup(size: int) -> dist.ProcessGroup:
    """This rank's group of ``size``; all ranks make all groups, in one order."""
    world = dist.get_world_size()
    groups: list[dist.ProcessGroup] = [
        dist.new_group(list(range(start, start + size))) for start in range(0, world - size + 1, size)
    ]
    return groups[min(dist.get_rank() // size, len(groups) - 1)]


def _table(times: dict[int, list[float]], behind_us: list[float], grid: Grid, source: str) -> CollectiveTable:
    """``times``: by ranks, of every size behind the usual product, then of the smallest behind the others."""
    by_nbytes = {size: tuple(row[: len(grid.nbytes)]) for size, row in times.items()}
    by_front = {size: row[len(grid.nbytes) :] for size, row in times.items()}
    errors = [error for row in by_nbytes.values() for error in leave_one_out(grid.nbytes, row)]
    *smaller, usual = behind_us
    kept = {us: place for place, us in enumerate(smaller) if us < usual}  # noise may turn two around
    return CollectiveTable(
        nbytes=grid.nbytes,
        us=by_nbytes,
        behind_us=(*sorted(kept), usual),
        smallest_us={
            size: (*(row[kept[us]] for us in sorted(kept)), by_nbytes[size][0])
            for size, row in by_front.items()
        },
        error=sum(errors) / max(len(errors), 1),
        source=source,
    )


def _products(
    clock: Clock, grid: Grid, dtype: torch.dtype, source: str, advance: Callable[[], Any]
) -> GemmTable:
    us = []
    for m, n, k in grid.products():
        us.append(clock.us(product_call(m, n, k, dtype, clock.device)))
        advance()
    return GemmTable(
        kind=_KINDS[dtype],
        framework=ANY_FRAMEWORK,
        m=grid.rows,
        n=grid.features,
        k=grid.features,
        us=tuple(us),
        error=_error(us, grid.features),
        source=source,
    )


def _error(us: list[float], features: tuple[int, ...]) -> float:
    """Mean error of interpolating along k, leaving one k out."""
    width = len(features)
    rows = [us[start : start + width] for start in range(0, len(us), width)]
    errors = [error for row in rows for error in leave_one_out(features, row)]
    return sum(errors) / max(len(errors), 1)


def _communicator(device: torch.device) -> Figure:
    if device.type == "cpu":
        return Figure(value=0, basis=Basis.ASSUMED, source="gloo keeps no device memory")
    source = "not measured: HCCL's two default buffers, which NCCL's are close to"
    return Figure(value=COMMUNICATION_BUFFER_NBYTES, basis=Basis.ASSUMED, source=source)


def _device_name(device: torch.device) -> str:
    module = getattr(torch, device.type, None)
    name = getattr(module, "get_device_name", None)
    return str(name(device)) if name is not None and device.type != "cpu" else platform.processor() or "CPU"


def _source(device: torch.device) -> str:
    day = datetime.now(timezone.utc).date()
    return (
        f"oproj calibrate, {day}, torch {torch.__version__}, {_device_name(device)}, {dist.get_backend()}, "
        f"{dist.get_world_size()} ranks, outside a graph, collectives behind products"
    )
