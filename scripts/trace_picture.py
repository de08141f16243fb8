"""Draws one profiled step of a sharded model on each rank: ``docs/assets/trace.svg``.

    torchrun --nproc-per-node 2 -m scripts.trace_picture docs/assets/trace.svg

The bars are the ranges of `docs/observe.md` as `torch.profiler` recorded them. Needs the extra `notebooks`,
for matplotlib.
"""

import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from matplotlib import pyplot as plt
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from oproj_pass import DecodeRunner
from oproj_pass.capture import StepBound, plan_capture

Range = tuple[str, float, float]

_ROWS = {"oproj_pass::": 0, "_c10d_functional::": 1}
_COLOURS = {
    "oproj_pass::agree": "#7a8fb0",
    "oproj_pass::copy_inputs": "#b08a3e",
    "oproj_pass::replay": "#2f7d5b",
    "_c10d_functional::all_to_all_single": "#8e5bb5",
    "_c10d_functional::reduce_scatter_tensor": "#0f7fa8",
    "_c10d_functional::wait_tensor": "#c4ccd8",
}


class Layer(nn.Module):
    """Attention over rows, and its projection."""

    def __init__(self, hidden: int = 1024, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.o_proj = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden] to the same."""
        q, k, v = self.qkv(x).view(len(x), 3, self.heads, 1, -1).unbind(1)
        projected: Tensor = self.o_proj(F.scaled_dot_product_attention(q, k, v).flatten(1))
        return x + projected


def record() -> list[Range]:
    """Names, starts and durations (milliseconds) of the ranges of one warm step."""
    model = torch.compile(nn.Sequential(Layer(), Layer()), backend="oproj_npu", fullgraph=True, dynamic=False)
    plan = plan_capture(StepBound(max_num_seqs=64, max_num_batched_tokens=64), sizes=[64])
    runner = DecodeRunner(model, plan, rows={"input": 0})
    inputs = {"input": torch.randn(64, 1024)}
    runner.capture(inputs)
    for _ in range(3):
        runner.step(inputs)
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        runner.step(inputs)
    events = [event for event in trace.events() or () if event.name in _COLOURS]
    start = min(event.time_range.start for event in events)
    return [
        (event.name, (event.time_range.start - start) / 1e3, event.time_range.elapsed_us() / 1e3)
        for event in events
    ]


def draw(ranks: list[list[Range]], path: str) -> None:
    """A lane for each rank, exchanges below the range that they run in."""
    figure, axes = plt.subplots(figsize=(9, 2.6))
    for rank, ranges in enumerate(ranks):
        for name, start, length in ranges:
            depth = next(row for prefix, row in _ROWS.items() if name.startswith(prefix))
            axes.broken_barh([(start, length)], (-(3 * rank + depth) - 0.8, 0.7), color=_COLOURS[name])
    axes.set_yticks(
        [-(3 * rank) - 0.95 for rank in range(len(ranks))], [f"rank {r}" for r in range(len(ranks))]
    )
    axes.set_xlabel("milliseconds")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in _COLOURS.values()]
    figure.legend(handles, list(_COLOURS), loc="upper center", ncols=3, frameon=False, fontsize=8)
    figure.subplots_adjust(top=0.78, bottom=0.2, left=0.07, right=0.99)
    figure.savefig(path, metadata={"Date": None})


@torch.inference_mode()
def main() -> None:
    """Record on every rank, draw on the first."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, record())
    if dist.get_rank() == 0:
        draw(gathered, sys.argv[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
