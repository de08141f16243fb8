"""Steps under prefill context parallelism dispatch by the rank that runs most."""

import pytest
import torch

from oproj_pass.capture import ContextSplit
from oproj_pass.errors import ConfigError
from oproj_pass.runtime import ContextParallelStep, local_slots

VECTORS = [
    (2, [8], [True], 4),
    (2, [7], [True], 4),
    (2, [3], [False], 3),
    (2, [3, 8], [False, True], 7),
    (4, [2, 9], [False, True], 5),
]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(("pcp_size", "scheduled", "is_prefill", "expected"), VECTORS)
def test_dispatches_by_the_largest_rank(pcp_size, scheduled, is_prefill, expected, waits):
    prompt_lens = [100] * len(scheduled)
    computed = [0 if prefill else 100 for prefill in is_prefill]
    step = ContextParallelStep(pcp_size, scheduled, prompt_lens, (lambda: computed) if waits else computed)
    assert step.num_tokens() == expected


def test_an_arrival_with_one_token_to_prefill_is_a_decode():
    """Its last prompt token and three drafts run on both ranks; a token earlier it is cut in two."""
    arrival, prefill = (ContextParallelStep(2, [4], [100], [computed]) for computed in (99, 98))
    assert (arrival.num_tokens(), prefill.num_tokens()) == (4, 2)


@pytest.mark.parametrize("rank", range(4))
def test_a_step_takes_the_rows_of_its_split(serving, peer, rank):
    split, step = ContextSplit(4, (9,)), ContextParallelStep(4, [9], [9], [0])
    rows = torch.tensor(split.shard([float(row) for row in range(9)], rank, pad=0.0))
    runner = serving(lambda x: x, group=peer)
    assert runner.step({"x": rows[:, None].expand(-1, 3)}, num_tokens=step.num_tokens).shape == (3, 3)


def test_asks_for_computed_tokens_once_and_only_when_the_step_does(serving, batch):
    asked = []

    def num_computed():
        asked.append(True)
        return [100, 0]

    step = ContextParallelStep(2, [3, 8], [100, 100], num_computed)
    runner = serving()
    assert asked == []
    assert runner.step({"x": batch(5)}, num_tokens=step.num_tokens).shape == (5, 3)
    assert asked == [True]


def test_a_stale_count_would_dispatch_another_size():
    late, early = [100, 50], [97, 50]
    sizes = {ContextParallelStep(2, [4, 8], [100, 100], computed).num_tokens() for computed in (late, early)}
    assert sizes == {8, 6}


def test_the_largest_rank_decides_the_captured_size(serving, batch, peer):
    rows_seen = []
    runner = serving(lambda x: (rows_seen.append(len(x)), x)[1], group=peer)
    runner.step({"x": batch(3)}, num_tokens=7)
    assert rows_seen[-1] == 8
    with pytest.raises(ConfigError, match="num_tokens=2 is below the 3 rows"):
        runner.step({"x": batch(3)}, num_tokens=2)


@pytest.mark.parametrize("contiguous", [True, False])
def test_each_rank_reads_its_part_of_the_slots(contiguous):
    slots = torch.arange(24).view(2, 12) if contiguous else torch.arange(24).view(12, 2).t()
    assert slots.is_contiguous() is contiguous
    parts = [local_slots(slots, 4, rank) for rank in range(4)]
    assert torch.equal(torch.cat(parts, dim=1), slots)


def test_refuses_slots_and_requests_that_do_not_fit():
    with pytest.raises(ConfigError, match="do not split over pcp_size=4"):
        local_slots(torch.zeros(2, 10), 4, 0)
    with pytest.raises(ConfigError, match="num_computed has 1 requests, prompt_lens 2"):
        ContextParallelStep(2, [1, 1], [5, 5], [3]).num_tokens()
