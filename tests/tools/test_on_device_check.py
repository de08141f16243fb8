"""The script that people run on their devices: rehearsed on CPU ranks, so that it works when they do."""

import json
from pathlib import Path

import pytest

from tests.support.scripts import run_script

SCRIPT = Path(__file__).parents[2] / "tools" / "on_device_check.py"

pytestmark = pytest.mark.distributed


@pytest.fixture
def rehearse(two_ranks, tmp_path):
    """Runs the script on two ranks; how it ended, and its report."""

    def run(*arguments):
        output = tmp_path / "report.json"
        rehearsal = ("--device", "cpu", "--rehearse", "--output", str(output))
        done = run_script(two_ranks, tmp_path, SCRIPT, *rehearsal, *arguments)
        assert output.exists(), done.stderr
        return done, json.loads(output.read_text())

    return run


def test_reports_parity_memory_and_time_for_each_group_size_that_fits(rehearse):
    done, report = rehearse()
    assert done.status == 0, done.stdout + done.stderr
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


def test_reports_a_failed_check_and_goes_on(rehearse):
    done, report = rehearse("--group-sizes", "2", "0", "--inner-backend", "no_such_backend")
    assert done.status == 1
    assert [item["ranks"] for item in report["checks"]] == [2, 0]
    assert all("no_such_backend" in item["problems"][0] for item in report["checks"])
    assert "no Dynamo backend" in done.stdout


def test_a_rank_that_stops_inside_a_replay_is_reported_by_the_other(two_ranks, tmp_path):
    output = tmp_path / "report.json"
    arguments = ("--device", "cpu", "--rehearse", "--lose-a-rank", "--timeout", "2", "--output", str(output))
    done = run_script(two_ranks, tmp_path, SCRIPT, *arguments)
    assert "well: " in done.stdout, done.stdout + done.stderr
    found = json.loads((tmp_path / "report.rank0.json").read_text())["lost_rank"]
    assert "GroupMismatchError" in found["error"]
    assert (tmp_path / "report_flight" / "rank0.json").exists()
