"""Derives the table of capture sizes from the installed vLLM, or compares it with a recorded one.

    python -m scripts.vllm_capture_table --compare tests/capture/data/vllm_capture_sizes.json
    python -m scripts.vllm_capture_table --write table.json

Sizes are those of real VllmConfig objects on a platform that changes no default; which uniform batches run
eager is asked of the real dispatchers of both model runners. About ten seconds, no device.
"""

import argparse
import json
import os
import sys
import tempfile
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1", VLLM_PLUGINS="")

from scripts.vllm_config_platform import use

use()

import torch
import vllm
from vllm.config import CUDAGraphMode
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
from vllm.v1.worker.gpu import cudagraph_utils

from examples.tiny_checkpoint import write_config

Row = dict[str, Any]

MAX_NUM_SEQS = (*range(1, 65), 77, 96, 100, 128, 200, 256, 512, 600)
MAX_NUM_BATCHED_TOKENS = (64, 512, 8192)
NUM_SPECULATIVE_TOKENS = (0, 1, 3, 7)
# (max_num_seqs, max_num_batched_tokens, num_speculative_tokens, what the user sets)
EXPLICIT: tuple[tuple[int, int, int, Row], ...] = (
    (100, 8192, 0, {"max_cudagraph_capture_size": 100}),
    (42, 8192, 0, {"max_cudagraph_capture_size": 42}),
    (100, 8192, 1, {"max_cudagraph_capture_size": 200}),
    (20, 8192, 3, {"max_cudagraph_capture_size": 80}),
    (100, 8192, 0, {"cudagraph_capture_sizes": [1, 2, 4, 8, 100]}),
    (100, 8192, 1, {"cudagraph_capture_sizes": [2, 8, 100, 200]}),
    (100, 8192, 1, {"cudagraph_capture_sizes": [1, 3, 5, 199]}),
    (600, 8192, 0, {"cudagraph_capture_sizes": [600]}),
    (600, 8192, 0, {"max_cudagraph_capture_size": 600}),
    (600, 512, 0, {"cudagraph_capture_sizes": [512, 600]}),
    (16, 8192, 0, {"cudagraph_capture_sizes": [16, 4, 4, 1]}),
    (16, 8192, 0, {"cudagraph_capture_sizes": [1, 16], "max_cudagraph_capture_size": 24}),
    (16, 8192, 7, {"cudagraph_capture_sizes": [4]}),
    (16, 8192, 0, {"cudagraph_capture_sizes": []}),
    (16, 8192, 0, {"max_cudagraph_capture_size": 0}),
)


def table() -> Row:
    """The whole table, with the versions it was derived from."""
    cudagraph_utils.get_pp_group = lambda: types.SimpleNamespace(is_first_rank=True, is_last_rank=True)
    with tempfile.TemporaryDirectory() as folder:
        models = {
            False: write_config(Path(folder, "qwen3_moe"), "qwen3_moe"),
            True: write_config(Path(folder, "deepseek_v3"), "deepseek_v3", num_nextn_predict_layers=1),
        }
        rows = [
            _row(models, seqs, tokens, drafts, {})
            for drafts in NUM_SPECULATIVE_TOKENS
            for tokens in MAX_NUM_BATCHED_TOKENS
            for seqs in MAX_NUM_SEQS
        ]
        explicit = [_row(models, *case) | {"user": case[3]} for case in EXPLICIT]
    return {"vllm": vllm.__version__, "torch": torch.__version__, "rows": rows, "explicit": explicit}


def _row(models: dict[bool, Path], seqs: int, tokens: int, drafts: int, user: Row) -> Row:
    asked = {"max_num_seqs": seqs, "max_num_batched_tokens": tokens, "num_speculative_tokens": drafts}
    try:
        config = EngineArgs(
            model=str(models[drafts > 0]),
            load_format="dummy",
            dtype="bfloat16",
            max_model_len=256,
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            speculative_config={"method": "mtp", "num_speculative_tokens": drafts} if drafts else None,
            compilation_config={"cudagraph_mode": "FULL_DECODE_ONLY", **user},
        ).create_engine_config()
    except Exception as error:  # which configurations vLLM refuses is part of the table
        return asked | {"error": type(error).__name__}
    compilation = config.compilation_config
    sizes = {
        "sizes": list(compilation.cudagraph_capture_sizes),
        "max": compilation.max_cudagraph_capture_size,
    }
    query = drafts + 1
    requests = [count for count in range(1, seqs + 1) if count * query <= tokens]
    return asked | sizes | _second_runner(config, query, requests) | _first_runner(config, query, requests)


def _second_runner(config: Any, query: int, requests: list[int]) -> Row:
    mode = config.compilation_config.cudagraph_mode
    manager = cudagraph_utils.CudaGraphManager(config, torch.device("cpu"), mode, query)
    manager._graphs_captured = True
    full = {each.num_tokens for each in manager._capture_descs.get(CUDAGraphMode.FULL, [])}
    eager = [
        count
        for count in requests
        if manager.dispatch(count, count * query, query, 0, query).cg_mode != CUDAGraphMode.FULL
    ]
    return {"v2_full": sorted(full), "v2_eager_reqs": _ranges(eager)}


def _first_runner(config: Any, query: int, requests: list[int]) -> Row:
    compilation = config.compilation_config
    try:
        compilation.adjust_cudagraph_sizes_for_spec_decode(query)
    except ValueError as error:
        return {"v1_error": str(error)[:120]}
    dispatcher = CudagraphDispatcher(config)
    dispatcher.initialize_cudagraph_keys(compilation.cudagraph_mode, query)
    eager = [
        count
        for count in requests
        if dispatcher.dispatch(count * query, uniform_decode=True)[0] != CUDAGraphMode.FULL
    ]
    return {"v1_sizes": list(compilation.cudagraph_capture_sizes), "v1_eager_reqs": _ranges(eager)}


def _ranges(counts: Iterable[int]) -> list[Any]:
    """``[1, 2, 3, 7]`` as ``[[1, 3], 7]``."""
    ranges: list[list[int]] = []
    for count in counts:
        if ranges and ranges[-1][1] == count - 1:
            ranges[-1][1] = count
        else:
            ranges.append([count, count])
    return [first if first == last else [first, last] for first, last in ranges]


def differences(recorded: Row, derived: Row) -> Iterator[str]:
    """What the installed vLLM decides otherwise than the recorded one, a line each."""
    for part in ("rows", "explicit"):
        if len(recorded[part]) != len(derived[part]):
            yield f"{part}: {len(recorded[part])} recorded, {len(derived[part])} derived"
        for old, new in zip(recorded[part], derived[part], strict=False):
            for name in sorted({*old, *new} - {"message"}):
                if old.get(name) != new.get(name):
                    where = {key: new[key] for key in list(new)[:3]} | new.get("user", {})
                    yield f"{where}: {name} was {old.get(name)}, is {new.get(name)}"


def main() -> int:
    """Write the table, or print where it differs from a recorded one; 1 if it does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    derived = table()
    if arguments.write:
        arguments.write.write_text(json.dumps(derived, separators=(",", ":")) + "\n")
    if arguments.compare is None:
        return 0
    recorded = json.loads(arguments.compare.read_text())
    found = list(differences(recorded, derived))
    print(f"vLLM {derived['vllm']} against the record of {recorded['vllm']}: {len(found)} differences")
    print("\n".join(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
