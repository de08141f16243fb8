"""The script for real devices reaches its end on the fake one: torch_npu's own calls, capture and replay."""

import json
from pathlib import Path

import pytest

from tests.ascend.support.process import PRELOAD, stub_environment
from tests.support.ranks import RankPool
from tests.support.scripts import run_script

SCRIPT = Path(__file__).parents[2] / "tools" / "on_device_check.py"


@pytest.fixture(scope="module")
def rehearsal(cann_stub, tmp_path_factory):
    """The report of one rank, and the device's events. Values are garbage: kernels do nothing here."""
    folder = tmp_path_factory.mktemp("on_device")
    output, events = folder / "report.json", folder / "events.log"
    pool = RankPool(1, stub_environment(cann_stub, events=events), PRELOAD)
    done = run_script(pool, folder, SCRIPT, "--rehearse", "--output", str(output))
    pool.close()
    assert output.exists(), done.stderr
    return json.loads(output.read_text()), events.read_text().splitlines()


def test_names_the_chip_and_the_versions(rehearsal):
    environment = rehearsal[0]["environment"]
    assert environment["device"] == "Ascend910B3"
    assert environment["cann"] == "9.1.0"
    assert environment["torch_npu"].startswith("2.13")


def test_runs_the_plan_as_replays(rehearsal):
    report, events = rehearsal
    (unsharded,) = report["checks"]  # one rank has nobody to share with
    assert unsharded["milliseconds"] > 0, unsharded["traceback"]
    assert unsharded["captures_while_serving"] == {}
    replays = sum(event.startswith("replay") for event in events)
    steps = 1 + report["environment"]["arguments"]["steps"]
    assert replays >= steps + len(unsharded["sizes"])
