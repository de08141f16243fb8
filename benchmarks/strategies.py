"""A sharded decode step by every strategy, over the same step written by hand and over DTensor's.

    python benchmarks/strategies.py --ranks 2 --json benchmarks/results/strategies_2_ranks.json

All variants run in one process a rank, in turn, so that a busy machine slows all of them; what is shown are
ratios of medians. gloo on a CPU proves the mechanism: an accelerator's times differ, and its order may.
DTensor has no all_to_all on gloo and falls back to an all_gather there, as it warns.
"""

import argparse
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.nn.functional as F
from on_ranks import keep, measure
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

LAYERS, HEADS, HEAD_DIM, HIDDEN = 4, 16, 128, 2048
MODEL = {"layers": LAYERS, "in_features": HEADS * HEAD_DIM, "out_features": HIDDEN, "dtype": "float32"}
ROUNDS, WARM_UPS = 25, 5
BY_HAND = "by hand: all_to_all, linear, reduce_scatter"
DTENSOR = "DTensor: RowwiseParallel(Shard(0) -> Shard(0))"
OURS = {
    "row": {"strategy": "row"},
    "row, exchange": {"strategy": "row", "reduce": "exchange"},
    "row, reduce auto": {"strategy": "row", "reduce": "auto"},
    "row, exchange, 2 chunks": {"strategy": "row", "reduce": "exchange", "chunks": 2},
    "column": {"strategy": "column"},
    "column, 2 chunks": {"strategy": "column", "chunks": 2},
}


class Attention(nn.Module):
    """Every token attends to itself alone: a decode step whose cost is its output projection's."""

    def __init__(self) -> None:
        super().__init__()
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.unflatten(-1, (HEADS, 1, HEAD_DIM))
        return x + self.o_proj(F.scaled_dot_product_attention(heads, heads, heads).flatten(-3))


class ByHand(nn.Module):
    """The projection of a rank, as serving engines write it."""

    def __init__(self, whole: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(whole.weight.chunk(dist.get_world_size(), 1)[dist.get_rank()].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = dist.get_world_size()
        packed = x.view(len(x), size, -1).transpose(0, 1).contiguous()
        rows = torch.empty_like(packed)
        dist.all_to_all_single(rows, packed)
        partial = F.linear(rows.flatten(0, 1), self.weight)
        y = x.new_empty(len(x), partial.shape[-1])
        dist.reduce_scatter_single(y, partial)
        return y


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Attention() for _ in range(LAYERS))).eval().requires_grad_(False)


def variants() -> dict[str, nn.Module]:
    by_hand, by_dtensor = model(), model()
    for attention in by_hand:
        attention.o_proj = ByHand(attention.o_proj)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = RowwiseParallel(input_layouts=Shard(0), output_layouts=Shard(0))
    for attention in by_dtensor:
        parallelize_module(attention, mesh, {"o_proj": plan})
    options = {"oproj_tensor_parallel_size": dist.get_world_size(), "agree_on_rows": False}
    ours = {
        name: torch.compile(model(), backend="oproj_npu", options=options | chosen, dynamic=False)
        for name, chosen in OURS.items()
    }
    return {BY_HAND: by_hand, DTENSOR: by_dtensor, **ours}


def steps(rows: int) -> dict[str, list[float]]:
    """Microseconds of every step, by variant."""
    x, expected = torch.randn(rows, HIDDEN), model()
    taken: dict[str, list[float]] = {}
    with torch.inference_mode():
        compared = variants()
        for name, module in compared.items():
            torch.testing.assert_close(module(x), expected(x), msg=lambda text, name=name: f"{name}: {text}")
        for _ in range(WARM_UPS + ROUNDS):
            for name, module in compared.items():
                dist.barrier()
                start = time.perf_counter()
                module(x)
                taken.setdefault(name, []).append((time.perf_counter() - start) * 1e6)
    return {name: [round(one, 1) for one in times[WARM_UPS:]] for name, times in taken.items()}


def table(found: dict[int, dict[str, list[float]]]) -> Table:
    shown = Table("variant")
    for rows in found:
        for column in (f"{rows} rows, ms", "over by hand", "over DTensor"):
            shown.add_column(column, justify="right")
    for name in next(iter(found.values())):
        cells = []
        for times in found.values():
            mine, hand, dtensor = (median(times[other]) for other in (name, BY_HAND, DTENSOR))
            cells += [f"{mine / 1e3:.2f}", f"{mine / hand:.2f}", f"{mine / dtensor:.2f}"]
        shown.add_row(name, *cells)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 256])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found = measure(steps, asked.ranks, asked.rows)
    Console(width=140).print(table(found))
    if asked.json is not None:
        keep(asked.json, asked.ranks, MODEL, microseconds=found)


if __name__ == "__main__":
    main()
