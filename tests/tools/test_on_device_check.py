"""The script that people run on their devices: rehearsed on CPU ranks, so that it works when they do."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ranks import free_port

SCRIPT = Path(__file__).parents[2] / "tools" / "on_device_check.py"

pytestmark = pytest.mark.distributed


def rehearse(folder, *arguments):
    """The finished process and its report, on two ranks."""
    output = folder / "report.json"
    address = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *address, str(SCRIPT)]
    done = subprocess.run(
        [*launch, "--device", "cpu", "--rehearse", "--output", str(output), *arguments],
        cwd=folder, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert output.exists(), done.stderr
    return done, json.loads(output.read_text())


def test_reports_parity_memory_and_time_for_each_group_size_that_fits(tmp_path):
    done, report = rehearse(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    unsharded, sharded = report["checks"]  # 4 and 8 do not divide two ranks
    assert (unsharded["ranks"], unsharded["sharded"], unsharded["freed_mib"]) == (0, 0, 0)
    assert (sharded["ranks"], sharded["sharded"]) == (2, 2)
    weight_mib = 2 * 128 * 256 * 2 / 2**20  # two layers in bfloat16
    assert sharded["freed_mib"] == weight_mib / 2
    assert 0 < sharded["parity_error"] < 0.02
    assert sharded["sizes"] == unsharded["sizes"] == [1, 2, 4, 8]
    assert sharded["milliseconds"] > 0
    assert report["environment"]["world"] == 2
    assert "Please send" in done.stdout


def test_reports_a_failed_check_and_goes_on(tmp_path):
    done, report = rehearse(tmp_path, "--group-sizes", "2", "0", "--inner-backend", "no_such_backend")
    assert done.returncode == 1
    assert [item["ranks"] for item in report["checks"]] == [2, 0]
    assert all("no_such_backend" in item["problems"][0] for item in report["checks"])
    assert "no Dynamo backend" in done.stdout
