"""Time of the sharding pass, and its share of torch.compile's, on decode graphs of 8 to 256 layers.

    python benchmarks/pass_time.py [--layers 8 16 32] [--inner eager]

A DeepSeek-V3-shaped model of tiny width: multi-head latent attention and a gated MLP, one token a row. The
graph is sharded over a fake group of 8, so no peers are needed; the inner backend compiles it all the same.
"""

import argparse
import time
from contextlib import contextmanager

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch._dynamo.backends.registry import lookup_backend
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, DeepseekV3Config

from oproj_pass.passes import Exchange, ShardOProj, find_projections, run_passes

LAYERS = (8, 16, 32, 64, 128, 256)
RANKS = 8


def decoder(layers):
    config = DeepseekV3Config(
        hidden_size=64, intermediate_size=64, num_hidden_layers=layers, vocab_size=64,
        num_attention_heads=8, num_key_value_heads=8, q_lora_rank=16, kv_lora_rank=16,
        qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, first_k_dense_replace=layers,
        n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)


class Stopwatch:
    """A Dynamo backend that times the pass inside a real compilation."""

    def __init__(self, inner, exchange):
        self.inner, self.exchange = inner, exchange
        self.find = self.shard = self.nodes = self.sites = 0

    def __call__(self, gm, inputs):
        self.nodes = len(gm.graph.nodes)
        start = time.perf_counter()
        find_projections(gm)
        self.find = time.perf_counter() - start
        start = time.perf_counter()
        (record,) = run_passes(gm, inputs, [ShardOProj(self.exchange)])
        self.shard = time.perf_counter() - start
        self.sites = len(record.matches)
        narrowed = {site.weight.name: site for site in record.matches}
        placeholders = gm.graph.find_nodes(op="placeholder")
        inputs = [
            x[:, : x.shape[1] // RANKS].contiguous() if node.name in narrowed else x
            for node, x in zip(placeholders, inputs, strict=True)
        ]
        compiled = lookup_backend(self.inner)(gm, inputs)
        return lambda *args: compiled(
            *[shard if a.shape != shard.shape else a for a, shard in zip(args, inputs, strict=True)]
        )


def measure(layers, inner, exchange):
    torch._dynamo.reset()
    stopwatch = Stopwatch(inner, exchange)
    model = torch.compile(decoder(layers), backend=stopwatch, fullgraph=True)
    start = time.perf_counter()
    with torch.no_grad():
        model(input_ids=torch.zeros(8, 1, dtype=torch.long), use_cache=False)
    return time.perf_counter() - start - stopwatch.find, stopwatch


@contextmanager
def fake_group():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield Exchange(RANKS, dist.group.WORLD.group_name)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS)
    parser.add_argument("--inner", default="eager")
    options = parser.parse_args()
    table = Table(title=f"shard_oproj in torch.compile, inner backend {options.inner}, {RANKS} ranks")
    for header in (
        "layers",
        "nodes",
        "sites",
        "find ms",
        "pass ms",
        "ms per layer",
        "compile s",
        "pass share",
    ):
        table.add_column(header, justify="right")
    with fake_group() as exchange:
        measure(2, options.inner, exchange)  # warm caches of fake tensors and custom operators
        for layers in track(options.layers, description="compiling"):
            total, taken = measure(layers, options.inner, exchange)
            find, shard = taken.find * 1e3, taken.shard * 1e3
            table.add_row(
                str(layers), str(taken.nodes), str(taken.sites), f"{find:.1f}", f"{shard:.1f}",
                f"{shard / layers:.2f}", f"{total:.1f}", f"{taken.shard / total:.1%}",
            )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
