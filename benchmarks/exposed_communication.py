"""How much of a wire's time a step shows, in chunks over in one piece.

    python benchmarks/exposed_communication.py --ranks 2 --json benchmarks/results/exposed_2_ranks.json

gloo on one machine has no wire. Here every collective of the group ends no earlier than a wire of a given
speed, one transfer at a time, would have brought its bytes; until then the rank is free to compute. The same
compiled steps run with the wire and without it, in turn and in one process a rank; a step's exposed time is
the difference. A wire with a fixed time for each transfer instead would gain nothing from chunks: all of them
start at once, and the first one arrives as late as the whole.
"""

import argparse
import time
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from on_ranks import keep, measure
from rich.console import Console
from rich.table import Table
from strategies import HIDDEN, MODEL, model

ROUNDS, WARM_UPS = 15, 3
SERIAL = "in one piece"
STEPS = {
    SERIAL: {"chunks": 1},
    "2 chunks": {"chunks": 2},
    "4 chunks": {"chunks": 4},
    "8 chunks": {"chunks": 8},
    "chunks auto": {"chunks": "auto"},
}


class Held(dist._Work):
    """Ends with the collective, but not before ``arrival`` on the clock."""

    def __init__(self, work: dist.Work, arrival: float) -> None:
        super().__init__()
        self.work, self.arrival = work, arrival

    def wait(self, timeout: object = None) -> bool:
        self.work.wait()
        time.sleep(max(0.0, self.arrival - time.perf_counter()))
        return True

    def get_future(self) -> torch.futures.Future:
        return self.work.get_future()


class SlowWire(dist.ProcessGroup):
    """gloo, over a wire of ``bytes_per_second``; infinitely fast until that is set."""

    bytes_per_second = float("inf")

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: object) -> None:
        super().__init__(rank, size)
        self.gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        self.free = 0.0

    def hold(self, work: dist.Work, sent: torch.Tensor) -> Held:
        others = (self.size() - 1) / self.size()
        taken = sent.nbytes * others / SlowWire.bytes_per_second
        self.free = max(self.free, time.perf_counter()) + taken
        return Held(work, self.free)

    def alltoall_base(self, received, sent, received_splits, sent_splits, opts):
        work = self.gloo.alltoall_base(received, sent, received_splits, sent_splits, opts)
        return self.hold(work, sent)

    def _reduce_scatter_base(self, received, sent, opts):
        return self.hold(self.gloo._reduce_scatter_base(received, sent, opts), sent)

    def allgather(self, received, sent, opts):
        return self.gloo.allgather(received, sent, opts)

    def allreduce(self, tensors, opts):
        return self.gloo.allreduce(tensors, opts)

    def broadcast(self, tensors, opts):
        return self.gloo.broadcast(tensors, opts)

    def barrier(self, opts):
        return self.gloo.barrier(opts)

    def getBackendName(self):
        return "slow_wire"

    @property
    def group_name(self) -> str:
        return dist.distributed_c10d._world.pg_names[self]


def steps(rows: int, bytes_per_second: float) -> dict[str, dict[str, list[float]]]:
    """Microseconds of every step, by variant, with the wire and without."""
    x, expected = torch.randn(rows, HIDDEN), model()
    common = {
        "oproj_tensor_parallel_size": dist.get_world_size(),
        "agree_on_rows": False,
        "reduce": "exchange",
    }
    taken: dict[str, dict[str, list[float]]] = {}
    with torch.inference_mode():
        SlowWire.bytes_per_second = bytes_per_second  # chunks auto decides with the wire
        compared = {}
        for name, chosen in STEPS.items():
            compared[name] = torch.compile(
                model(), backend="oproj_npu", options=common | chosen, dynamic=False
            )
            torch.testing.assert_close(compared[name](x), expected(x))
        for _ in range(WARM_UPS + ROUNDS):
            for name, module in compared.items():
                for wire, speed in (("wire", bytes_per_second), ("none", float("inf"))):
                    SlowWire.bytes_per_second = speed
                    dist.barrier()
                    start = time.perf_counter()
                    module(x)
                    taken.setdefault(name, {}).setdefault(wire, []).append(
                        round((time.perf_counter() - start) * 1e6, 1)
                    )
    return {name: {wire: times[WARM_UPS:] for wire, times in found.items()} for name, found in taken.items()}


def over_a_slow_wire() -> None:
    dist.Backend.register_backend("slow_wire", SlowWire, devices=["cpu"])
    dist.init_process_group("slow_wire")


def table(found: dict[str, dict[str, list[float]]]) -> Table:
    """Exposed is the median of the differences, each of two steps that ran one after the other."""
    shown = Table("step", "without a wire, ms", "over one piece", "exposed, ms", "over one piece")
    without = {name: median(both["none"]) for name, both in found.items()}
    exposed = {
        name: median(wire - none for wire, none in zip(both["wire"], both["none"], strict=True))
        for name, both in found.items()
    }
    for name in found:
        shown.add_row(
            name,
            f"{without[name] / 1e3:.2f}",
            f"{without[name] / without[SERIAL]:.2f}",
            f"{exposed[name] / 1e3:.2f}",
            f"{exposed[name] / exposed[SERIAL]:.2f}",
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--megabytes-per-second", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    over_the_wire = partial(steps, bytes_per_second=asked.megabytes_per_second * 1e6)
    found = measure(over_the_wire, asked.ranks, [asked.rows], over_a_slow_wire)[asked.rows]
    Console(width=140).print(table(found))
    if asked.json is not None:
        wire = {"rows": asked.rows, "megabytes_per_second": asked.megabytes_per_second}
        keep(asked.json, asked.ranks, MODEL | wire, microseconds=found)


if __name__ == "__main__":
    main()
