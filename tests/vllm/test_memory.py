"""What a sharded load frees is there for the KV cache: vLLM sizes it after its own profile run.

It divides what is left of the granted memory by the bytes of a block. On an accelerator tensors are held, as
the device's allocator counts them. On a CPU it is the resident process, which varies by more than the weights
here: pages that are kept, compiled graphs, a sandbox's accounting. So the worker is told the bytes of the
tensors that live, and what the process has allocated is compared besides.
"""

import ctypes
import gc
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from examples.tiny_checkpoint import CONFIGS, write_config
from oproj_pass.advisor.kv_cache import read_kv_cache
from tests.vllm.support.engine import COMPILED, build_engine, greedy, output_projections, weights
from tests.vllm.support.process import run_ranks

pytestmark = pytest.mark.timeout(900)  # several engines start, one after the other

# Weights (four bytes a value) that outweigh what a process varies by: output projections (2048 x 8192) in two
# layers, the embedding and the LM head (8192 x 2048).
WIDE = {
    "hidden_size": 2048, "num_attention_heads": 128, "num_key_value_heads": 1, "num_experts": 2,
    "vocab_size": 8192,
}  # fmt: skip
PROJECTION = TABLE = 2048 * 8192 * 4
MEMORY_FRACTION = 0.15


class _Allocated(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks")
    ] + [("fordblks", ctypes.c_size_t), ("keepcost", ctypes.c_size_t)]


def _allocated():
    allocated = ctypes.CDLL("libc.so.6").mallinfo2
    allocated.restype = _Allocated
    now = allocated()
    return now.hblkhd + now.uordblks


def _bytes_of_tensors():
    import torch

    gc.collect()
    tensors = (value for value in gc.get_objects() if issubclass(type(value), torch.Tensor))
    return sum(dict(map(_place_and_bytes, tensors)).values())


def _place_and_bytes(tensor):
    """Where the tensor's values are, and their bytes; none for a tensor without values."""
    try:
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
    except (NotImplementedError, RuntimeError):  # a fake tensor
        return 0, 0
    return place, storage.nbytes() if place else 0


def start(rank, model, settings):
    allocated = []

    def held(_):
        allocated.append(_allocated())
        return SimpleNamespace(rss=_bytes_of_tensors())

    with patch("psutil.Process.memory_info", held):
        llm = build_engine(
            model,
            compilation=COMPILED,
            kv_cache_memory_bytes=None,
            gpu_memory_utilization=MEMORY_FRACTION,
            load_format="dummy",
            max_num_batched_tokens=32,
            **settings,
        )
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    (group,) = runner.kv_cache_config.kv_cache_groups
    return {
        "tokens": greedy(llm, [[5, 6, 7]], 4),
        "allocated": allocated[-1],
        "block_size": group.kv_cache_spec.block_size,
        "num_blocks": runner.kv_cache_config.num_blocks,
        "projections": output_projections(llm),
        "tables": weights(llm, "embed_tokens.weight", "lm_head.weight"),
    }


@pytest.fixture(scope="module")
def starts(tmp_path_factory):
    """By route, the first rank's facts: unsharded, sharded load, and full loads released by the backend."""
    model = write_config(tmp_path_factory.mktemp("wide"), "qwen3_moe", **WIDE)
    routes = {
        "unsharded": {},
        "sharded load": {"size": 2},
        "released": {"size": 2, "options": {"load_sharded": False}},
        "embedding and LM head": {"size": {"embedding": 2, "lmhead": 2}},
    }
    return {name: run_ranks(start, model, settings)[0] for name, settings in routes.items()}


FREED = {
    "sharded load": 2 * PROJECTION // 2,
    "released": 2 * PROJECTION // 2,
    "embedding and LM head": 2 * TABLE // 2,
}


@pytest.mark.parametrize("route", FREED)
def test_the_freed_bytes_become_the_blocks_that_the_config_foretells(starts, route):
    before, after = starts["unsharded"], starts[route]
    block = read_kv_cache(CONFIGS["qwen3_moe"] | WIDE, itemsize=4).block_nbytes(before["block_size"])
    assert FREED[route] // block > 100
    assert abs(after["num_blocks"] - before["num_blocks"] - FREED[route] // block) <= 1


@pytest.mark.parametrize("route", FREED)
def test_the_process_lets_go_of_the_freed_bytes(starts, route):
    freed = starts["unsharded"]["allocated"] - starts[route]["allocated"]
    assert freed == pytest.approx(FREED[route], rel=0.05)


@pytest.mark.parametrize("route", ["sharded load", "released"])
def test_both_routes_hold_half_of_each_projection(starts, route):
    for kind, shape, stored, shard in starts[route]["projections"].values():
        assert (kind, shape, stored, shard) == ("ReleasedParameter", (2048, 8192), 0, PROJECTION // 2)


def test_a_rank_holds_half_of_the_embedding_and_of_the_lm_head(starts):
    tables = starts["embedding and LM head"]["tables"]
    assert len(tables) == 2
    for kind, shape, stored, shard in tables.values():
        assert (kind, shape, stored, shard) == ("ReleasedParameter", (8192, 2048), 0, TABLE // 2)
