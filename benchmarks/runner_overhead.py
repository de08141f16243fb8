"""What a decode step costs beyond the model, and where it goes, next to the compiled call itself.

    python benchmarks/runner_overhead.py

Calls alternate between the plain compiled function and the runner, so that a busy machine slows both. The
group answers at once with a copy of this rank's row, which leaves the network out: the collective's own time
depends on the deployment and is reported by `--ranks`.
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


class Timed:
    """Stands in for a method of ``owner``, and keeps the time of each call."""

    def __init__(self, owner, method):
        self.call, self.times = getattr(owner, method), []
        setattr(owner, method, self)

    def __call__(self, *args, **kwargs):
        start = time.perf_counter()
        result = self.call(*args, **kwargs)
        self.times.append((time.perf_counter() - start) * 1e6)
        return result


def measure(rounds):
    """Least times: of a direct call and of a step, by turns, and of each part inside such a step."""
    fn = torch.compile(Model().eval(), backend="eager", dynamic=False, fullgraph=True)
    runner = DecodeRunner(
        fn, PLAN, rows={"x": 0, "positions": 0, "slots": 0}, pad={"slots": -1}, group=InstantPeer()
    )
    runner.capture(batch(1))
    inputs = batch(TOKENS)
    direct = partial(fn, **runner._inputs.arguments(SIZE))

    def agree():
        runner._peers.agree(StepKind.STEP, TOKENS, GraphMode.FULL)

    def agree_and_call():  # with the caches as the agreement leaves them
        agree()
        return direct()

    with torch.inference_mode():
        calls = {
            "direct": direct,
            "agree": agree,
            "agree and call": agree_and_call,
            "step": partial(runner.step, inputs),
        }
        whole = microseconds(calls, rounds)
        parts = {
            "check inputs, constants, stance and weights": Timed(runner._checks, "check"),
            "copy into persistent inputs, pad": Timed(runner._inputs, "load"),
            "replay": Timed(runner._graphs[SIZE], "replay"),
            "trim": Timed(runner._outputs, "trim"),
        }
        microseconds({"step": calls["step"]}, rounds)
    return whole, {name: min(part.times) for name, part in parts.items()}


def report(whole, parts):
    direct, step, aside = whole["direct"], whole["step"], whole["agree and call"]
    table = Table(title=f"One decode step: {TOKENS} tokens at size {SIZE}, three inputs, least time")
    table.add_column("part")
    table.add_column("µs", justify="right")
    table.add_column("of the direct call", justify="right")
    rows = {
        "the compiled function, called directly": direct,
        "an agreement, without the network": whole["agree"],
        "an agreement, then the direct call": aside,
        "a step of the runner": step,
        "[bold]overhead of the step, agreement aside": step - aside,
    }
    for number, (name, value) in enumerate((rows | parts).items()):
        if number == len(rows):
            table.add_section()
        table.add_row(name, f"{value:.1f}", f"{value / direct:.2f}x")
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
