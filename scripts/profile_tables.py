"""Writes the measured tables of the advisor's profiles from a public data set.

    pip install aiconfigurator-core==0.12.0 pandas pyarrow   (an environment of its own)
    python -m scripts.profile_tables [NAME ...]

The tables are those of the Apache-2.0 package `aiconfigurator-core`: NCCL by nccl-tests, products by
framework. A size that was measured in two types is their mean. Everything else of a profile stays as it is.
"""

import json
import re
import sys
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from oproj_pass.advisor.interpolate import interpolate, leave_one_out

PROFILES = Path(__file__).parents[1] / "oproj_pass/advisor/profiles"
PACKAGE = "aiconfigurator-core 0.12.0 (Apache-2.0)"
# name of a profile -> system, NCCL version, framework -> its version
SYSTEMS = {
    "a100": ("a100_sxm", "2.27.3", {"vllm": "0.14.0", "sglang": "0.5.10"}),
    "h100": ("h100_sxm", "2.29.2", {"vllm": "0.24.0", "sglang": "0.5.14"}),
    "h200": ("h200_sxm", "2.29.2", {"vllm": "0.24.0", "sglang": "0.5.14"}),
    "b200": ("b200_sxm", "2.29.2", {"vllm": "0.24.0", "sglang": "0.5.14"}),
    "gb200": ("gb200", "2.29.2", {"vllm": "0.24.0", "sglang": "0.5.14"}),
    "pcie": ("rtx_pro_6000_server", "2.29.2", {"vllm": "0.24.0"}),
}
COLLECTIVES = {"alltoall": "all_to_all", "reduce_scatter": "reduce_scatter", "all_gather": "all_gather"}
ITEMSIZE = {"half": 2, "int8": 1}  # the table counts elements
NBYTES = (1 << 10, 64 << 20)
KINDS = {"bfloat16": "16bit", "fp8": "8bit", "fp8_block": "8bit_block"}
M = (1, 8, 16, 32, 64, 128, 256, 512, 1024)
FEATURES = (512, 1024, 2048, 4096, 5120, 6144, 7168, 8192, 12288, 16384)
N = (*FEATURES, 65536)


def collectives(system: str, version: str) -> dict[str, Any]:
    """The tables of one system's collectives, by name."""
    rows = _read(system, f"comm/nccl/{version}/nccl_perf.parquet")
    rows["nbytes"] = rows.message_size * rows.nccl_dtype.map(ITEMSIZE)
    rows = rows[rows.nbytes.between(*NBYTES)]
    source = f"nccl-tests, NCCL {version}, {rows.device.iloc[0]}, outside a graph: {PACKAGE}, {system}"
    return {name: _collective(rows[rows.op_name == op], source) for op, name in COLLECTIVES.items()}


def _collective(rows: pd.DataFrame, source: str) -> dict[str, Any]:
    times = rows.groupby(["num_gpus", "nbytes"]).latency.mean() * 1e3
    sizes = sorted(rows.nbytes.unique())
    us = {str(n): [round(float(times[n, size]), 2) for size in sizes] for n in sorted(rows.num_gpus.unique())}
    errors = [error for row in us.values() for error in leave_one_out(sizes, row)]
    return {
        "nbytes": [int(size) for size in sizes], "us": us, "error": round(sum(errors) / len(errors), 3),
        "source": source,
    }  # fmt: skip


def gemms(system: str, framework: str, version: str) -> list[dict[str, Any]]:
    """The tables of one framework's products, a type each."""
    rows = _read(system, f"gemm/{framework}/{version}/gemm_perf.parquet")
    found = []
    for dtype, kind in KINDS.items():
        times = rows[rows.gemm_dtype == dtype].groupby(["m", "n", "k"]).latency.min() * 1e3
        points = list(product(M, N, FEATURES))
        if not all(point in times.index for point in points):
            continue
        us = [round(float(times[point]), 1) for point in points]
        source = f"{framework} {version}, {rows.device.iloc[0]}, {dtype}: {PACKAGE}, {system}"
        found.append(
            {
                "kind": kind,
                "framework": framework,
                "m": M,
                "n": N,
                "k": FEATURES,
                "us": us,
                "error": round(_error_between(times, us), 3),
                "source": source,
            }
        )
    return found


def _error_between(times: Any, us: list[float]) -> float:
    """Mean error on the measured points between the table's, which the interpolation has not seen."""
    between = [
        (m, n, k)
        for m, n, k in times.index
        if m <= M[-1] and 512 <= n <= 16384 and 512 <= k <= 16384
        and not (m in M and n in N and k in FEATURES)
    ]  # fmt: skip
    errors = [abs(interpolate([M, N, FEATURES], us, at) / float(times[at]) - 1) for at in between[::7]]
    return sum(errors) / len(errors)


def _read(system: str, path: str) -> pd.DataFrame:
    return pd.read_parquet(str(files("aiconfigurator_core").joinpath(f"systems/data/{system}/{path}")))


def write(path: Path, document: dict[str, Any]) -> None:
    """JSON with every list of numbers on one line."""
    text = json.dumps(document, indent=2)
    text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    path.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Fill the profiles that are named, else all that have tables."""
    for name in sys.argv[1:] or SYSTEMS:
        system, nccl, frameworks = SYSTEMS[name]
        path = PROFILES / f"{name}.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        document["collectives"] = collectives(system, nccl)
        tables = [gemms(system, framework, version) for framework, version in frameworks.items()]
        document["gemms"] = [table for found in tables for table in found]
        write(path, document)


if __name__ == "__main__":
    main()
