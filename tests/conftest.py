"""Fixtures of the whole suite."""

import os
from functools import partial

import pytest
from hypothesis import settings

from tests.support.ranks import RankPool
from tests.support.system_calls import with_room

# With torch_npu and no CANN, a plain `import torch` raises; only processes over the stub load torch_npu.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """As pytest calls a test, with room for its frames."""
    names = pyfuncitem._fixtureinfo.argnames
    with_room(partial(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session")
def two_ranks():
    pool = RankPool(2)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def four_ranks():
    pool = RankPool(4)
    yield pool
    pool.close()


@pytest.fixture(scope="session", autouse=True)
def lean_process():
    """This process, too, does without what no test needs."""
    from tests.support.lean import leave_guards_untimed, rest_the_collector

    leave_guards_untimed()
    rest_the_collector()


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """Compiled code of one test never serves another."""
    import torch

    torch._dynamo.reset()
