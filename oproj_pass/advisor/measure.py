"""Times collectives and products on the devices of this process group.

Every rank calls each function in the same order. A time is the median of several measurements between two
waits for the device, so it holds the host's part too: what an eager step pays, and more than a replayed graph
does.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from oproj_pass.advisor.profile import Collective

__all__ = ["Clock", "collective_calls", "group_sizes", "product_call"]

functional = torch.ops._c10d_functional
_WARM_UP, _FEWEST, _MOST = 2, 5, 40
_SECONDS = 0.15  # spent on one measurement, whatever it takes
_ROUNDS, _PAIRS = 8, 15  # of products with collectives behind each, and of such runs beside products alone
_LEAST_US = 1.0  # where noise leaves nothing of a collective


class Clock:
    """Measures calls on ``device``."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        module = getattr(torch, device.type, None)
        self._wait: Callable[[], Any] = getattr(module, "synchronize", lambda: None)

    def us(self, call: Callable[[], Any]) -> float:
        """Median microseconds of ``call``, which meets no other rank."""
        for _ in range(_WARM_UP):
            call()
        repeats = int(_SECONDS * 1e6 / max(self._once(call), 1.0))
        return median(self._once(call) for _ in range(min(max(repeats, _FEWEST), _MOST)))

    def us_behind(
        self, multiply: Callable[[], Any], call: Callable[[], Any], group: dist.ProcessGroup
    ) -> float:
        """Median microseconds that ``call`` adds to a run of ``multiply``, two behind each of them.

        The ranks of ``group`` start a run together and then meet in ``call`` alone, so the time holds what a
        step pays: the wait for the slower rank, and the cores that the exchange takes from the next product.
        Two, as a sharded product has two exchanges: once for both do its ranks wait.
        """

        def us_of_run(*calls: Callable[[], Any]) -> float:
            dist.barrier(group)
            return self._once(lambda: [call() for _ in range(_ROUNDS) for call in calls]) / _ROUNDS

        us_of_run(multiply, call, call)
        added = (us_of_run(multiply, call, call) - us_of_run(multiply) for _ in range(_PAIRS))
        return max(median(added) / 2, _LEAST_US)

    def _once(self, call: Callable[[], Any]) -> float:
        self._wait()
        start = time.perf_counter()
        call()
        self._wait()
        return (time.perf_counter() - start) * 1e6


def group_sizes(world: int) -> list[int]:
    """The N to measure: 2, 4, 8, ... up to the world."""
    return [2**power for power in range(1, world.bit_length()) if 2**power <= world]


def collective_calls(
    size: int, nbytes: int, dtype: torch.dtype, device: torch.device, group: dist.ProcessGroup
) -> Iterator[tuple[Collective, Callable[[], Any]]]:
    """Each collective over ``size`` ranks with a buffer of ``nbytes``, called as a rewritten graph calls it.

    ``dtype``: of the numbers; a backend may add up one type faster than another.
    """
    count = max(nbytes // dtype.itemsize // size, 1)
    splits, name = [count] * size, group.group_name
    whole, part = (torch.ones(length, dtype=dtype, device=device) for length in (count * size, count))
    wait = functional.wait_tensor.default
    yield "all_to_all", lambda: wait(functional.all_to_all_single.default(whole, splits, splits, name))
    yield "reduce_scatter", lambda: wait(functional.reduce_scatter_tensor.default(whole, "sum", size, name))
    yield "all_gather", lambda: wait(functional.all_gather_into_tensor.default(part, size, name))


def product_call(m: int, n: int, k: int, dtype: torch.dtype, device: torch.device) -> Callable[[], Tensor]:
    """``[m, k] @ [k, n]`` with a weight that no cache holds: each call takes another of several."""
    x = torch.ones(m, k, dtype=dtype, device=device)
    copies = max(min(2**28 // (n * k * dtype.itemsize), 8), 1)
    weights: Sequence[Tensor] = [torch.ones(n, k, dtype=dtype, device=device) for _ in range(copies)]
    turn = iter(range(10**9))
    return lambda: torch.nn.functional.linear(x, weights[next(turn) % copies])
