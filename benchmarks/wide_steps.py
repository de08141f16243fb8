"""A wide step, which gathers each weight just ahead of its use, over the same step of the unsharded model.

    python benchmarks/wide_steps.py --ranks 2 --json benchmarks/results/wide_steps_2_ranks.json

Both run eager in one process a rank, in turn, so that a busy machine slows both; what is shown are ratios of
medians. Ranks bring unequal rows. gloo on a CPU proves the mechanism: what travels there takes the time of
the cores that compute, which an accelerator's does not.
"""

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from on_ranks import keep, measure
from rich.console import Console
from rich.table import Table
from torch import nn

from oproj_pass import DecodeRunner, shard_report
from oproj_pass.capture import StepBound, plan_capture

LAYERS, HEADS, HEAD_DIM, HIDDEN = 2, 8, 128, 1024
ROUNDS, WARM_UPS = 9, 1
UNSHARDED = "unsharded"
STRATEGIES = {"wide step, row": "row", "wide step, column": "column"}


class Layer(nn.Module):
    """Every token attends to itself alone; an MLP, whose weights stay whole, has most of the work."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(len(x), 3, HEADS, 1, HEAD_DIM).unbind(1)
        x = x + self.o_proj(F.scaled_dot_product_attention(q, k, v).flatten(1))
        return x + self.down(F.gelu(self.up(x)))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Layer() for _ in range(LAYERS))).eval().requires_grad_(False)


def runner_of(strategy: str) -> tuple[DecodeRunner, nn.Module]:
    options = {"oproj_tensor_parallel_size": dist.get_world_size(), "strategy": strategy}
    sharded = model()
    compiled = torch.compile(sharded, backend="oproj_npu", options=options, dynamic=False)
    plan = plan_capture(StepBound(max_num_seqs=4, max_num_batched_tokens=4), sizes=[4])
    runner = DecodeRunner(compiled, plan, rows={"input": 0}, wide_steps="gather")
    runner.capture({"input": torch.zeros(1, HIDDEN)})
    return runner, sharded


def steps(rows: int) -> dict[str, Any]:
    """Microseconds of every step, by variant, and the bytes of the weights and of the buffers."""
    x, unsharded = torch.randn(rows - 8 * dist.get_rank(), HIDDEN), model()
    runners = {name: runner_of(strategy) for name, strategy in STRATEGIES.items()}
    taken: dict[str, list[float]] = {}
    with torch.inference_mode():
        expected = unsharded(x)
        calls = {UNSHARDED: lambda: unsharded(x)}
        for name, (runner, _) in runners.items():
            calls[name] = lambda runner=runner: runner.step({"input": x})
        for _ in range(WARM_UPS + ROUNDS):
            for name, call in calls.items():
                dist.barrier()
                start = time.perf_counter()
                result = call()
                taken.setdefault(name, []).append(round((time.perf_counter() - start) * 1e6, 1))
                assert torch.equal(result, expected), name
    return {
        "microseconds": {name: times[WARM_UPS:] for name, times in taken.items()},
        "kept_nbytes": {name: shard_report(sharded).kept_nbytes for name, (_, sharded) in runners.items()},
        "buffers_nbytes": {name: runner.gather_nbytes for name, (runner, _) in runners.items()},
        "largest_weight_nbytes": HEADS * HEAD_DIM * HIDDEN * 4,
    }


def table(found: dict[int, dict[str, Any]]) -> Table:
    shown = Table("variant")
    for rows in found:
        for column in (f"{rows} rows, ms", "over unsharded", "buffers, in weights"):
            shown.add_column(column, justify="right")
    for name in (UNSHARDED, *STRATEGIES):
        cells = []
        for of in found.values():
            mine, whole = (median(of["microseconds"][other]) for other in (name, UNSHARDED))
            buffers = of["buffers_nbytes"].get(name, 0) / of["largest_weight_nbytes"]
            cells += [f"{mine / 1e3:.1f}", f"{mine / whole:.2f}", f"{buffers:.2f}"]
        shown.add_row(name, *cells)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found = measure(steps, asked.ranks, asked.rows)
    Console(width=140).print(table(found))
    if asked.json is not None:
        model = {"layers": LAYERS, "in_features": HEADS * HEAD_DIM, "hidden": HIDDEN, "dtype": "float32"}
        keep(asked.json, asked.ranks, model, steps=found)


if __name__ == "__main__":
    main()
