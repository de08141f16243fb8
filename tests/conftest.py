"""Fixtures of the whole suite."""

import pytest
import torch

from tests.support.ranks import RankPool


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


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """Compiled code of one test never serves another."""
    torch._dynamo.reset()
