"""How well a calibrated profile predicts the change of a step of a model that it was not calibrated on.

    oproj calibrate's file first:
    torchrun --nproc-per-node 2 -m oproj_pass.cli calibrate mine.json --device cpu
    torchrun --nproc-per-node 2 benchmarks/calibrated_step.py mine.json --json raw.json

Layers of projections alone, one weight each, are timed as they are and sharded over all ranks, in turns, so
that what else the machine does meets both alike. The difference is the median of the pairs' own differences.
What stands between two projections is timed by itself: ranks wait longer for each other the more they do.
"""

import argparse
import json
import os
from copy import deepcopy
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F

from oproj_pass.advisor.measure import Clock
from oproj_pass.advisor.profile import load_profile
from oproj_pass.advisor.step_time import step_difference
from oproj_pass.advisor.workload import EXCHANGES, Shape

HIDDEN, HEADS, HEAD_DIM, STEPS = 1536, 24, 128, 120


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)

    def forward(self, q, x):
        return x + self.o_proj(attended(q))


def attended(q):
    return F.scaled_dot_product_attention(q, q, q).transpose(0, 1).flatten(1)


class Model(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(layers))

    def forward(self, q, x):
        for layer in self.layers:
            x = layer(q, x)
        return x


def us_between(tokens):
    q, x = torch.randn(HEADS, tokens, HEAD_DIM), torch.randn(tokens, HIDDEN)
    return Clock(q.device).us(lambda: (attended(q), x + x))


def measured(layers, tokens):
    size = dist.get_world_size()
    whole = Model(layers).eval().requires_grad_(False)
    options = {"oproj_tensor_parallel_size": size, "inner_backend": "eager", "agree_on_rows": False}
    torch._dynamo.reset()
    steps = {
        "whole": torch.compile(deepcopy(whole), backend="eager"),
        "sharded": torch.compile(whole, backend="oproj_npu", options=options),
    }
    inputs = torch.randn(HEADS, tokens, HEAD_DIM), torch.randn(tokens, HIDDEN)
    times = {name: [] for name in steps}
    for _ in range(STEPS):
        for name, step in steps.items():
            dist.barrier()
            start = perf_counter()
            step(*inputs)
            times[name].append(perf_counter() - start)
    return {name: [1e3 * seconds for seconds in found[STEPS // 5 :]] for name, found in times.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("profile")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--json", type=Path, help="Keep the raw figures of rank 0.")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    profile = load_profile(options.profile)
    shape = Shape("oproj", HIDDEN, HEADS * HEAD_DIM, 4, 4, 4, "32bit", count=options.layers)
    table = Table(title=f"{options.layers} layers, N = {dist.get_world_size()}, ms a step", box=None)
    for column in ("tokens", "whole", "sharded", "difference", "quartiles", "predicted", "off by"):
        table.add_column(column, justify="right")
    raw = {}
    with torch.no_grad():
        for tokens in options.tokens:
            ms = measured(options.layers, tokens)
            step = step_difference(
                profile, [shape], EXCHANGES["oproj"][0],
                size=dist.get_world_size(), tokens=tokens, between_us=us_between(tokens),
            )  # fmt: skip
            predicted = step.difference.value
            raw[tokens] = {**ms, "predicted": predicted}
            differences = [b - a for a, b in zip(ms["whole"], ms["sharded"], strict=True)]
            low, difference, high = quantiles(differences, n=4)
            table.add_row(
                str(tokens),
                f"{median(ms['whole']):.2f}",
                f"{median(ms['sharded']):.2f}",
                f"{difference:+.2f}",
                f"{low:+.2f} to {high:+.2f}",
                f"{predicted:+.2f}",
                f"{100 * (predicted / difference - 1):+.0f} %",
            )
    if dist.get_rank() == 0:
        Console().print(table)
        if options.json is not None:
            about = {
                "layers": options.layers,
                "in_features": HEADS * HEAD_DIM,
                "out_features": HIDDEN,
                "ranks": dist.get_world_size(),
                "cpus": os.cpu_count(),
                "load": os.getloadavg(),
                "torch": torch.__version__,
                "profile": profile.model_dump(mode="json"),
            }
            options.json.write_text(json.dumps({"about": about, "ms": raw}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
