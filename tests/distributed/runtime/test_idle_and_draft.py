"""Ranks without requests, and several runners of one group, stay in step."""

import pytest
import torch
import torch.distributed as dist

from oproj_pass.capture import StepBound, plan_capture
from tests.distributed.runtime.ranks import Exchanging, batch, caught, checked_step, serving

pytestmark = pytest.mark.distributed


def idling_at(idle_steps, num_steps):
    runner, counts = serving(), []
    for step in range(num_steps):
        if dist.get_rank() == 1 and step in idle_steps:
            runner.idle_step({})
        else:
            checked_step(runner, 1 + (3 * step + dist.get_rank()) % 8)
        counts.append((runner.num_agreements, len(runner.fn.calls)))
    return counts


def test_an_idle_rank_takes_part_in_every_collective(ranks):
    counts = ranks.run(idling_at, {3, 7, 8}, 20)
    assert all(count == counts[0] for count in counts)
    assert [calls for _, calls in counts[0]] == list(range(1, 21))


def sizes_run(sizes, max_num_seqs, steps):
    """The rows that each step ran at, when this rank brings the step's tokens; None is idle."""
    plan = plan_capture(StepBound(max_num_seqs, 4096), sizes=sizes)
    runner = serving(plan=plan)
    for by_rank in steps:
        tokens = by_rank[dist.get_rank()]
        if tokens is None:
            runner.idle_step({})
        else:
            checked_step(runner, tokens)
    return [rows for rows, _ in runner.fn.calls]


@pytest.mark.parametrize(
    ("sizes", "steps", "expected"),
    [
        ([4, 8], [(5, 6), (3, 2)], [8, 4]),  # the largest count, not their sum
        ([4, 8], [(5, None)], [8]),  # not the idle rank's own count
        ([8, 256], [(8, 256), (None, 8)], [256, 8]),
        ([4, 8], [(0, 3), (None, None)], [4, 4]),
    ],
)
def test_all_ranks_run_the_size_of_the_largest_count(two_ranks, sizes, steps, expected):
    assert two_ranks.run(sizes_run, sizes, max(sizes), steps) == [expected, expected]


def drafting(skips_one):
    """A target step, then three draft steps with an LM head each; rank 1 has no requests."""
    target = serving(name="target")
    draft, lm_head = serving(name="draft"), serving(name="lm_head")
    idle = dist.get_rank() == 1

    def run(runner):
        runner.idle_step({}) if idle else checked_step(runner, 3)

    def steps():
        run(target)
        for _ in range(2 if idle and skips_one else 3):
            run(draft)
            run(lm_head)
        run(target)

    return caught(steps), [len(runner.fn.calls) for runner in (target, draft, lm_head)]


def test_draft_steps_meet_on_every_rank_on_their_own(ranks):
    for (kind, message, _), calls in ranks.run(drafting, False):
        assert (kind, message) == ("none", "")
        assert calls == [2, 3, 3]


def test_a_skipped_draft_step_is_named_on_every_rank(ranks):
    for (kind, message, _), _ in ranks.run(drafting, True):
        assert kind == "GroupMismatchError"
        assert "rank 0 is at agreement 4 of 'draft'" in message
        assert "rank 1 is at agreement 3 of 'target'" in message


def sampling():
    runner = serving(rows={"x": 0, "indices": 0}, fn=Sampling(), example=sampled(1))
    mine = sampled(3 if dist.get_rank() == 0 else 1)
    before = {name: value.clone() for name, value in mine.items()}
    logits = runner.step(mine)
    return logits.shape[0] == len(mine["x"]), all(torch.equal(mine[name], before[name]) for name in mine)


class Sampling(Exchanging):
    def __call__(self, x, indices):
        return super().__call__(x) + indices[:, None]


def sampled(num_tokens):
    return {"x": batch(num_tokens), "indices": torch.arange(num_tokens)}


def test_padding_never_reaches_the_callers_tensors(two_ranks):
    assert two_ranks.run(sampling) == [(True, True), (True, True)]


def alternating(num_steps):
    runner = serving()
    for step in range(num_steps):
        checked_step(runner, (3, 7)[step % 2])
    return {size: {address for rows, address in runner.fn.calls if rows == size} for size in (4, 8)}


def test_every_replay_of_a_size_reads_the_same_address(two_ranks):
    for addresses in two_ranks.run(alternating, 50):
        assert addresses[4] == addresses[8]
        assert len(addresses[4]) == 1
