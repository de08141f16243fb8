"""An idle rank replays over current state: a written KV cache shows any stale slot."""

import pytest
import torch

from oproj_pass.capture import StepBound, plan_capture
from oproj_pass.errors import ConfigError
from oproj_pass.runtime import DecodeRunner, idle_restore_index, idle_slots, local_slots
from oproj_pass.runtime.buffers import PersistentInputs


class Cache:
    """Writes each row to its slot of a cache, and returns what the block table points at."""

    def __init__(self):
        self.values = torch.zeros(10, 3)

    def __call__(self, x, slots, table):
        kept = slots >= 0
        self.values[slots[kept]] = x[kept]
        return x + self.values[table[:1]].sum()


@pytest.fixture
def cached(plan):
    cache = Cache()
    runner = DecodeRunner(cache, plan, rows={"x": 0, "slots": 0, "table": None}, pad={"slots": -1})
    runner.capture(
        {"x": torch.ones(1, 3), "slots": torch.ones(1, dtype=torch.long), "table": torch.tensor([0, 1])}
    )
    return runner, cache


def step(runner, slots, value):
    x = torch.full((len(slots), 3), value)
    return runner.step({"x": x, "slots": torch.tensor(slots), "table": torch.tensor([0, 1])})


def test_capture_and_idle_steps_write_nothing(cached):
    runner, cache = cached
    assert cache.values.eq(0).all()
    step(runner, [4, 7, 2], 5.0)
    cache.values[[4, 7, 2]] = -1.0  # the blocks now belong to somebody else
    runner.idle_step({"table": torch.tensor([3, 3])})
    assert cache.values[[4, 7, 2]].eq(-1).all()
    assert runner._inputs.arguments(1)["table"].tolist() == [3, 3]


def test_stale_inputs_would_corrupt_the_cache(cached, monkeypatch):
    runner, cache = cached
    step(runner, [4], 5.0)
    cache.values[4] = -1.0
    monkeypatch.setattr(PersistentInputs, "load", lambda *_: None)
    runner.idle_step({"table": torch.tensor([3, 3])})
    assert cache.values[4].eq(5).all()


def test_an_idle_rank_uses_its_current_slots(cached):
    runner, cache = cached
    runner.idle_step(
        {"table": torch.tensor([0, 0]), "slots": torch.tensor([6, 9]), "x": torch.full((2, 3), 8.0)}
    )
    assert cache.values[6].eq(8).all()
    assert cache.values[9].eq(0).all()


def test_an_idle_rank_brings_no_more_than_the_largest_step(serving, peer):
    few = plan_capture(StepBound(2, 6, num_speculative_tokens=7))
    runner = serving(plan=few, group=peer)
    runner.idle_step({})
    assert peer.rows[-1].num_tokens == few.max_size == 6


def test_refuses_an_idle_step_without_the_current_block_table(cached):
    with pytest.raises(ConfigError, match="idle step needs the current 'table'"):
        cached[0].idle_step({})


def test_refuses_fewer_rows_than_a_decode_request_has(cached):
    with pytest.raises(ConfigError, match="runs 1 tokens, input 'slots' brings only 0 rows"):
        cached[0].idle_step({"table": torch.tensor([0, 0]), "slots": torch.zeros(0, dtype=torch.long)})


def test_context_parallel_idle_inputs_point_nowhere():
    slots = idle_slots(groups=2, pcp_size=4, num_tokens=3)
    assert slots.shape == (2, 12)
    assert slots.eq(-1).all()
    assert local_slots(slots, 4, 1).shape == (2, 3)
    assert idle_restore_index(rank=2, num_tokens=3).tolist() == [6, 7, 8]
