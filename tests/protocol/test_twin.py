"""The protocol, written a second time in Promela, comes to the same verdicts as the search of the code."""

import logging
import os
import shutil
import subprocess
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from oproj_pass.runtime.peers import Peers
from tests.protocol.explore import explore
from tests.protocol.mutants import MUTANTS, Mutant
from tests.protocol.programs import serve
from tests.protocol.searches import NO_DEVICE_TIMEOUT, Search

MODEL = Path(__file__).with_name("step_protocol.pml")
MISSING = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}: packages spin and gcc")

TWO_STEPS = Search(partial(serve, warm_up=False, steps=2, kinds=("busy", "unfit")), 2, 1, 1, 1)
SILENT = Mutant(TWO_STEPS, Peers, "_exchange_failures", lambda self, reason, kind: "nobody was told")
# The number of a mutant in the model, and what is the same in the product; None: no fault.
SAME = {
    "no fault": (0, None, TWO_STEPS),
    "a failed rank tells nobody, and timeouts do": (5, SILENT, SILENT.search),
    "a device whose collectives wait for ever": (6, None, NO_DEVICE_TIMEOUT),
    **{
        name: (number, MUTANTS[name], MUTANTS[name].search)
        for number, name in (
            (1, "an unfit rank refuses without agreeing"),
            (2, "each rank goes by its own tokens and mode"),
            (3, "an idle rank issues its collectives twice"),
            (4, "a lost rank is left out"),
        )
    },
}


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spin")
    options = ["-DSAFETY", "-DNOREDUCE", "-O1", "-w"]
    for command in (["spin", "-a", str(MODEL)], ["gcc", *options, "-o", "verifier", "pan.c"]):
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    return folder / "verifier"


@pytest.mark.parametrize("name", SAME)
def test_the_twin_agrees(verifier, name, caplog):
    caplog.set_level(logging.ERROR)
    number, mutant, search = SAME[name]
    found = subprocess.run(
        [verifier, "-m100000"], env={**os.environ, "MUTANT": str(number)}, cwd=verifier.parent,
        capture_output=True, text=True, timeout=240, check=True,
    ).stdout  # fmt: skip
    assert "errors: " in found
    assert "max search depth too small" not in found
    with mutant.seeded() if mutant else nullcontext(), search.start() as start:
        assert (explore(start).violation is None) == ("errors: 0" in found)
