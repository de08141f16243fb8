"""``"auto"`` without other ranks: refused where ranks were launched or are counted on, and said otherwise."""

import logging
from contextlib import nullcontext
from functools import partial

import pytest

from oproj_pass import ConfigError, OProjConfig
from oproj_pass.backend import world
from tests.support.fake import fake_world


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in world._WORLD_SIZES:
        monkeypatch.delenv(name, raising=False)
    world._warn.cache_clear()


def require_world(**options):
    world.require_world(OProjConfig(**options))


@pytest.mark.parametrize("name", world._WORLD_SIZES)
def test_refuses_a_launched_rank_without_a_process_group(monkeypatch, name):
    monkeypatch.setenv(name, "2")
    with pytest.raises(ConfigError, match=f"launcher says {name} = 2.*init_process_group"):
        require_world()


@pytest.mark.parametrize("size", [0, 1])
def test_takes_a_size_that_shards_nothing_at_its_word(monkeypatch, size):
    monkeypatch.setenv("WORLD_SIZE", "2")
    require_world(oproj_tensor_parallel_size=size, expected_sites=3)


def test_says_once_that_a_process_alone_shards_nothing(monkeypatch, caplog):
    monkeypatch.setenv("WORLD_SIZE", "1")
    with caplog.at_level(logging.WARNING, logger="oproj_pass"):
        require_world()
        require_world()
    (record,) = caplog.records
    assert "nothing is sharded" in record.getMessage()


@pytest.mark.parametrize("world", [nullcontext, partial(fake_world, 1)], ids=["no group", "one rank"])
def test_counts_what_is_sharded_not_what_is_found(world):
    with world(), pytest.raises(ConfigError, match="expected_sites = 3, and nothing can be sharded"):
        require_world(expected_sites=3)


def test_is_silent_with_other_ranks(monkeypatch, caplog):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with fake_world(2):
        require_world(expected_sites=3)
    assert not caplog.records
