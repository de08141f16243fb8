"""The tests over torch_npu: they run in an environment that has it (``make test-ascend``), with no NPU.

This process never loads torch_npu; what needs it runs through ``npu_process``, over a stub of CANN.
"""

from importlib.util import find_spec
from itertools import count

import pytest

from tests.ascend.cann.build import missing_tools, stub_folder
from tests.ascend.support.process import PRELOAD, run_over_stub, stub_environment
from tests.support.ranks import RankPool
from tests.support.system_calls import let_pollers_sleep

if find_spec("torch_npu") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def cann_stub():
    """The folder of the stub's libraries, built where it is not yet."""
    missing = missing_tools()
    if missing:
        pytest.skip(f"building the CANN stub needs {', '.join(missing)}: install g++ and binutils")
    let_pollers_sleep()  # as all processes over the stub inherit
    return stub_folder()


@pytest.fixture(scope="session")
def npu_process(cann_stub, tmp_path_factory):
    """``npu_process(function, *args, soc=, cann=, devices=, timeout=) -> Outcome``: see ``run_over_stub``."""
    folder, number = tmp_path_factory.mktemp("events"), count()

    def run(function, *args, **settings):
        return run_over_stub(cann_stub, folder / f"{next(number)}.log", function, *args, **settings)

    return run


@pytest.fixture(scope="session")
def torchair_process(cann_stub):
    """``torchair_process(function, *args)``: its result, from one process for all that torchair only lowers.

    The second graph costs half of what the first does. Nobody reads the device's events there.
    """
    pool = RankPool(1, stub_environment(cann_stub), PRELOAD)
    yield lambda function, *args: pool.run(function, *args, init=False, timeout=240)[0]
    pool.close()
