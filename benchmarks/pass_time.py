"""What the backend adds to `torch.compile`, on decode graphs of 8 to 256 layers: CPU time of rank 0.

    torchrun --nproc-per-node 2 benchmarks/pass_time.py [--layers 8 16 32] [--inner eager] [--roles oproj mlp]

A DeepSeek-V3-shaped model of tiny width: multi-head latent attention and a gated MLP, one token a row.
``pass``: the search and the rewriting, its metadata and checks with it. ``backend``: all that `oproj_npu`
does with a graph, less the inner backend. ``first call``: all that it adds to that call, which cuts the
weights. Waits for the other rank are not CPU time. Garbage is not collected: a collection walks over all that
Dynamo holds, at the cost of whoever allocates next.
"""

import argparse
import gc
from time import process_time
from unittest.mock import patch

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch._dynamo.backends.registry import lookup_backend
from transformers import AutoModelForCausalLM, DeepseekV3Config

from oproj_pass.backend import entry, oproj_npu

LAYERS = (8, 16, 32, 64, 128, 256)
HEADERS = "layers", "nodes", "pass ms", "backend ms", "first call ms", "compile s", "pass", "all"


def decoder(layers):
    config = DeepseekV3Config(
        hidden_size=64, intermediate_size=64, num_hidden_layers=layers, vocab_size=64,
        num_attention_heads=8, num_key_value_heads=8, q_lora_rank=16, kv_lora_rank=16,
        qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, first_k_dense_replace=layers,
        n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)


class Stopwatch:
    """A Dynamo backend that times `oproj_npu` inside a real compilation."""

    def __init__(self, inner, roles):
        self._compile_inner = lookup_backend(inner)
        sizes = {f"{role}_tensor_parallel_size": dist.get_world_size() for role in roles}
        self._options = {"oproj_tensor_parallel_size": 1, "inner_backend": self._inner} | sizes
        self.calls = []  # seconds of each, less the inner graph's

    def __call__(self, gm, inputs):
        self.nodes, self.inner, self.passes = len(gm.graph.nodes), 0.0, 0.0
        steps = {name: self._counting(getattr(entry, name)) for name in ("find_sites", "run_passes")}
        with patch.multiple(entry, **steps):
            compiled, whole = timed(oproj_npu, gm, inputs, options=self._options)
        self.backend = whole - self.inner

        def call(*args):
            result, seconds = timed(compiled, *args)
            self.calls.append(seconds - self.inside)
            return result

        return call

    def _counting(self, step):
        def count(*args, **options):
            result, seconds = timed(step, *args, **options)
            self.passes += seconds
            return result

        return count

    def _inner(self, gm, inputs):
        compiled, self.inner = timed(self._compile_inner, gm, inputs)

        def call(*args):
            result, self.inside = timed(compiled, *args)
            return result

        return call


def timed(function, *args, **options):
    start = process_time()
    result = function(*args, **options)
    return result, process_time() - start


def measure(layers, inner, roles):
    torch._dynamo.reset()
    stopwatch = Stopwatch(inner, roles)
    model = torch.compile(decoder(layers), backend=stopwatch, fullgraph=True)
    step = {"input_ids": torch.zeros(8, 1, dtype=torch.long), "use_cache": False}
    with torch.no_grad():
        _, whole = timed(model, **step)
    return whole, stopwatch, stopwatch.calls[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS)
    parser.add_argument("--inner", default="eager")
    parser.add_argument("--roles", nargs="+", default=["oproj"], choices=["oproj", "mlp", "lmhead"])
    options = parser.parse_args()
    dist.init_process_group("gloo")
    gc.disable()
    title = f"oproj_npu in torch.compile, {', '.join(options.roles)}, inner backend {options.inner}"
    table = Table(title=title, box=None)
    for header in HEADERS:
        table.add_column(header, justify="right")
    measure(2, options.inner, options.roles)  # warm caches of fake tensors and custom operators
    for layers in track(options.layers, description="compiling", disable=dist.get_rank() > 0):
        whole, taken, first = measure(layers, options.inner, options.roles)
        added = taken.backend + first
        table.add_row(
            str(layers), str(taken.nodes), f"{1e3 * taken.passes:.0f}", f"{1e3 * taken.backend:.0f}",
            f"{1e3 * first:.0f}", f"{whole:.1f}", f"{taken.passes / whole:.2%}", f"{added / whole:.2%}",
        )  # fmt: skip
    if dist.get_rank() == 0:
        Console().print(table)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
