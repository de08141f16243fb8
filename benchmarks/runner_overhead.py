"""What a decode step costs beyond the model, and where it goes, next to the compiled call itself.

    python benchmarks/runner_overhead.py

A step is held against the least that a caller without a runner does once the ranks have agreed: write the
inputs into the memory that the captured graph reads, pad the rest, call the compiled function over it and cut
the result (*the call by hand*). The *direct call* is that call alone: no input is written, so it computes the
last ones again. Both come after an agreement too: the model runs slower on what that leaves of the caches.

Calls alternate, so that a busy machine slows all of them. The group answers at once with a copy of this
rank's row, which leaves the network out: its time depends on the deployment, see `--ranks`.
"""

import argparse
import multiprocessing as mp
import os
import time
from functools import partial

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn

from oproj_pass.capture import GraphMode, StepBound, plan_capture
from oproj_pass.flight.record import FLIGHT
from oproj_pass.groups import shard_group
from oproj_pass.runtime import ControlGroup, DecodeRunner, Replies, StepKind

HIDDEN, TOKENS, SIZE = 64, 13, 16
PLAN = plan_capture(StepBound(SIZE, 4096), sizes=[1, 2, 4, 8, SIZE])


class InstantPeer:
    """A second rank that always brings what this one brings."""

    ranks, rank = (0, 1), 0

    def exchange(self, row, timeout):
        return Replies({0: row, 1: row})

    def limit_collectives(self, timeout):
        pass


class Model(nn.Module):
    def __init__(self, layers=4):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(layers))

    def forward(self, x, positions, slots):
        for layer in self.layers:
            x = layer(x)
        return x + positions[:, None] + slots[:, None]


def batch(num_tokens):
    return {
        "x": torch.randn(num_tokens, HIDDEN),
        "positions": torch.arange(num_tokens),
        "slots": torch.arange(num_tokens),
    }


def microseconds(calls, rounds):
    """The least time of one call of each, over rounds in which the calls take turns."""
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            start = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - start) * 1e6)
    return {name: min(values) for name, values in times.items()}


def by_hand(call, arguments, inputs):
    """The call by hand: what a caller of a captured graph cannot leave out. Slots of unused rows are -1."""
    x, positions, slots = arguments["x"], arguments["positions"], arguments["slots"]

    def write_and_call():
        rows = len(inputs["x"])
        x[:rows].copy_(inputs["x"])
        positions[:rows].copy_(inputs["positions"])
        slots[:rows].copy_(inputs["slots"])
        slots[rows:].fill_(-1)
        return call()[:rows]

    return write_and_call


class Timed:
    """Stands in for a method of ``owner``, and keeps the time of each call."""

    def __init__(self, owner, method):
        self.owner, self.method, self.call, self.times = owner, method, getattr(owner, method), []

    def __call__(self, *args, **kwargs):
        start = time.perf_counter()
        result = self.call(*args, **kwargs)
        self.times.append((time.perf_counter() - start) * 1e6)
        return result

    def least(self, call, rounds):
        """The least time of the method inside ``call``."""
        setattr(self.owner, self.method, self)
        for _ in range(rounds):
            call()
        delattr(self.owner, self.method)
        return min(self.times)


def measure(rounds):
    """Least times of whole calls by turns, of each part inside a step, and of the same part in a loop."""
    fn = torch.compile(Model().eval(), backend="eager", dynamic=False, fullgraph=True)
    runner = DecodeRunner(
        fn, PLAN, rows={"x": 0, "positions": 0, "slots": 0}, pad={"slots": -1}, group=InstantPeer()
    )
    runner.capture(batch(1))
    serving, peers, inputs = runner._serving, runner._peers, batch(TOKENS)
    checks, buffers, outputs = serving._checks, serving._inputs, serving._outputs
    arguments = buffers.arguments(SIZE)
    direct = partial(fn, **arguments)
    write_and_call = by_hand(direct, arguments, inputs)
    agree = partial(peers.agree, StepKind.STEP, TOKENS, GraphMode.FULL)
    step = partial(runner.step, inputs)
    with torch.inference_mode():
        output = direct()
        whole = microseconds(
            {
                "direct": direct,
                "agree": agree,
                "agree, direct": lambda: (agree(), direct()),
                "agree, by hand": lambda: (agree(), write_and_call()),
                "step": step,
            },
            rounds,
        )
        alone = {
            "agreement, without the network": (peers, "agree", agree),
            "inputs fit, all bring the same rows": (
                buffers, "count_tokens", partial(buffers.count_tokens, inputs)
            ),
            "stance, weights, constants": (checks, "_cannot_replay", partial(checks._cannot_replay, inputs)),
            "copy into persistent inputs, pad": (
                buffers, "load", partial(buffers.load, inputs, TOKENS, SIZE)
            ),
            "flight record of the replay": (FLIGHT, "begin", partial(FLIGHT.begin, "replay", "model", 0, "")),
            "trim": (outputs, "trim", partial(outputs.trim, output, TOKENS, SIZE)),
            "counts": (
                serving._counts, "add_step", partial(serving._counts.add_step, "replayed", 0, idle=False)
            ),
        }  # fmt: skip
        parts = {
            name: (Timed(owner, method).least(step, rounds), microseconds({name: call}, rounds)[name])
            for name, (owner, method, call) in alone.items()
        }
    return whole, parts


def report(whole, parts):
    step, direct, hand = whole["step"], whole["agree, direct"], whole["agree, by hand"]
    table = Table(title=f"One decode step: {TOKENS} tokens at size {SIZE}, three inputs, least time")
    table.add_column("call")
    table.add_column("µs", justify="right")
    for name, value in {
        "the compiled function, called directly": whole["direct"],
        "an agreement, without the network": whole["agree"],
        "an agreement, then the direct call": direct,
        "an agreement, then the call by hand": hand,
        "a step of the runner": step,
        "[bold]the step over the direct call, agreement aside": step - direct,
        "[bold]the step over the call by hand, agreement aside": step - hand,
    }.items():
        table.add_row(name, f"{value:.1f}")
    Console().print(table)
    table = Table(title="Parts of a step, least time in µs")
    for column in ("part", "inside the step", "in a loop"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for name, (inside, loop) in parts.items():
        table.add_row(name, f"{inside:.1f}", f"{loop:.1f}")
    Console().print(table)


def agreement_on_ranks(rank, world, port, steps):
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    group = shard_group(world, None, 30)
    control, row = ControlGroup(group), bytearray(512)
    rows = [torch.empty(512, dtype=torch.uint8) for _ in range(world)]
    mine = torch.zeros(512, dtype=torch.uint8)
    times = microseconds(
        {
            "agreement (direct exchange)": lambda: control.exchange(row, 30),
            "dist.all_gather of the same row": lambda: dist.all_gather(rows, mine, group=group.control),
        },
        steps,
    )
    if rank == 0:
        table = Table(title=f"The collective on {world} gloo ranks of this machine, least time")
        table.add_column("collective")
        table.add_column("µs", justify="right")
        for name, value in times.items():
            table.add_row(name, f"{value:.0f}")
        Console().print(table)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--ranks", type=int, nargs="*", default=[], help="also time the collective")
    parser.add_argument("--port", type=int, default=29577)
    options = parser.parse_args()
    torch.set_num_threads(1)
    report(*measure(options.rounds))
    for world in options.ranks:
        arguments = (world, options.port, max(50, options.rounds // 10))
        workers = [
            mp.get_context("spawn").Process(target=agreement_on_ranks, args=(rank, *arguments))
            for rank in range(world)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    main()
