"""Times several ways to do the same on a group, so that all of its ranks take the same one.

1. Ranks meet, and bring what they are about to time: nobody starts a collective that a peer will not join.
2. Each times every way.
3. They meet again with their times, and each knows the slowest rank's of every way.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median

import torch

from oproj_pass.agreement.barrier import meet
from oproj_pass.agreement.known_errors import known_to_group
from oproj_pass.agreement.wire import StepKind
from oproj_pass.errors import GroupMismatchError
from oproj_pass.groups import ShardGroup

_REPEATS, _WARM_UPS = 7, 2


def slowest_microseconds(
    ways: Mapping[str, Callable[[], object]],
    what: str,
    joint: ShardGroup,
    device: torch.device,
    timeout: float,
) -> dict[str, float]:
    """The slowest rank's median time of each way, the same on every rank of ``joint``.

    ``what``: what is timed, in words that all ranks have to bring. Raises ``GroupMismatchError`` if they do
    not, or if a peer is not at the same graph.
    """
    brought = meet(joint, StepKind.MEASURE, what, timeout)
    if len(set(brought.values())) > 1:
        listed = "; ".join(f"rank {rank}: {words}" for rank, words in brought.items())
        raise known_to_group(
            GroupMismatchError(
                f"ranks {list(joint.ranks)} cannot measure how to exchange, for what they bring differs: "
                f"{listed}. All ranks of a group must run the same model with the same row counts."
            )
        )
    mine = " ".join(f"{taken:.1f}" for taken in _microseconds(ways, device))
    found = meet(joint, StepKind.MEASURE, mine, timeout)
    by_rank = [[float(taken) for taken in words.split()] for words in found.values()]
    return dict(zip(ways, map(max, zip(*by_rank, strict=True)), strict=True))


def _microseconds(ways: Mapping[str, Callable[[], object]], device: torch.device) -> list[float]:
    """The median time of each way on this rank; in turn, so that a busy machine slows all of them."""
    wait = _synchronize(device)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(_WARM_UPS + _REPEATS):
        for name, run in ways.items():
            wait()
            start = time.perf_counter()
            run()
            wait()
            times[name].append(time.perf_counter() - start)
    return [median(taken[_WARM_UPS:]) * 1e6 for taken in times.values()]


def _synchronize(device: torch.device) -> Callable[[], None]:
    """What waits for the device's work; a CPU's is done when a call returns."""
    if device.type == "cpu":
        return lambda: None
    return partial(getattr(torch, device.type).synchronize, device)
