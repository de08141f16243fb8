"""Two data-parallel ranks of vLLM decode on a CPU, with full and with sharded output projections.

    python examples/vllm_decode.py [qwen3_moe | deepseek_v3]

Nothing is downloaded: the checkpoint is a tiny random one, written here. What a decode node needs is in
``SHARDED``; everything else makes vLLM run such a model without an accelerator.
"""

import multiprocessing as mp
import os
import socket
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tiny_checkpoint import CONFIGS, write_checkpoint

RANKS = 2
FULL: dict[str, Any] = {"enforce_eager": True}
SHARDED: dict[str, Any] = {
    "additional_config": {
        "finegrained_tp_config": {"oproj_tensor_parallel_size": RANKS},
        # A CPU has no graphs, and vLLM pads no step there: every exchange carries the largest step.
        "oproj_pass": {"capacity": "auto"},
    },
    "compilation_config": {"mode": 2, "backend": "oproj_npu"},
}
PROMPTS = [[[5, 6, 7, 8]], [[9, 10, 11], [12, 13]]]


def decode(rank: int, port: int, model: str, arguments: dict[str, Any], answer: Connection) -> None:
    """One rank: build the engine, decode, report tokens and the bytes of the output projections."""
    os.environ.update(
        HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", VLLM_LOGGING_LEVEL="ERROR",
        VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_HOST_IP="127.0.0.1",
        VLLM_NO_USAGE_STATS="1", VLLM_DP_RANK=str(rank), VLLM_DP_RANK_LOCAL="0", VLLM_DP_SIZE=str(RANKS),
        VLLM_DP_MASTER_IP="127.0.0.1", VLLM_DP_MASTER_PORT=str(port),
    )  # fmt: skip
    from vllm import LLM, SamplingParams  # noqa: PLC0415  (reads the environment)
    from vllm_on_cpu import prepare  # noqa: PLC0415

    prepare()
    llm = LLM(
        model=model, dtype="float32", max_model_len=256, max_num_seqs=8, kv_cache_memory_bytes=64 << 20,
        distributed_executor_backend="uni", **arguments,
    )  # fmt: skip
    prompts = [{"prompt_token_ids": tokens} for tokens in PROMPTS[rank]]
    greedy = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    outputs = llm.generate(prompts, greedy, use_tqdm=False)
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    held = sum(_held(weight) for name, weight in runner.model.named_parameters() if "o_proj" in name)
    answer.send(([list(output.outputs[0].token_ids) for output in outputs], held))
    os._exit(0)


def _held(weight: Any) -> int:
    return int(weight.shard.nbytes if hasattr(weight, "shard") else weight.untyped_storage().nbytes())


def run(model: str, arguments: dict[str, Any]) -> list[tuple[list[list[int]], int]]:
    """Both ranks' tokens and bytes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = mp.get_context("spawn")
    pipes = [context.Pipe() for _ in range(RANKS)]
    for rank, (_, theirs) in enumerate(pipes):
        context.Process(target=decode, args=(rank, port, model, arguments, theirs)).start()
        theirs.close()
    return [ours.recv() for ours, _ in pipes]


def main() -> None:
    """Decode with full and with sharded weights, and compare."""
    shape = sys.argv[1] if len(sys.argv) > 1 else next(iter(CONFIGS))
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_checkpoint(Path(folder), shape))
        full, sharded = run(model, FULL), run(model, SHARDED)
    for rank, ((tokens, bytes_full), (_, bytes_sharded)) in enumerate(zip(full, sharded, strict=True)):
        held = f"{bytes_full:,} bytes full, {bytes_sharded:,} sharded"
        print(f"rank {rank}: tokens {tokens}, output projections {held}")
    same = [tokens for tokens, _ in full] == [tokens for tokens, _ in sharded]
    print("tokens are the same with full and with sharded output projections" if same else "TOKENS DIFFER")
    sys.exit(not same)


if __name__ == "__main__":
    main()
