"""Prefills that the runner splits compute what one rank does, in step with other replicas, or nowhere."""

import pytest
import torch
import torch.distributed as dist

from oproj_pass.capture import ContextBatch
from oproj_pass.groups import shard_group
from oproj_pass.runtime import PrefillRunner
from tests.distributed.runtime.ranks import TIMEOUT, caught, whole_group
from tests.support.packed import ROWS, WHOLE, Request, advance, inputs_of, packed, step_of

pytestmark = pytest.mark.distributed


def prefilling(fn=None, *, context=2, **options):
    """A warm runner over all ranks, neighbours of which share prompts."""
    options = {"sizes": [2, 6, 12], "timeout": TIMEOUT, "capture_timeout": 30.0, **options}
    group = shard_group(context, None, 30) if context > 1 else None
    fn = packed() if fn is None else fn
    runner = PrefillRunner(fn, rows=ROWS, whole=WHOLE, context=group, group=whole_group(), **options)
    runner.warm_up({name: torch.zeros(1, dtype=torch.int64) for name in ROWS})
    return runner


def round_trip(x):
    """To all ranks and back: whatever replicas bring, their rows come back, if all bring equally many."""
    sent = x.repeat(dist.get_world_size(), 1)
    received, returned = torch.empty_like(sent), torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    dist.all_to_all_single(returned, received)
    return returned[: len(x)]


def served(steps, make=prefilling):
    """Differences of logits and caches from a model that runs alone, per step; and the tokens of both.

    ``steps``: the requests that this replica runs in each step, as functions of its requests.
    """
    runner, reference = make(packed(round_trip)), packed()
    mine, alone = requests_of_replica(), requests_of_replica()
    found = []
    for select in steps:
        running, expected = select(mine), select(alone)
        if not running:
            runner.idle_step({})
            logits = whole = torch.zeros(1)
        else:
            logits = runner.step(inputs_of(running), step_of(running, 2))
            whole = reference(**inputs_of(expected))
            advance(running, logits)
            advance(expected, whole)
        caches = runner.fn.caches() - reference.caches()
        found.append(((logits - whole).abs().max().item(), caches.abs().max().item()))
    return found, [r.tokens for r in mine], [r.tokens for r in alone], runner.num_agreements


def replica():
    return dist.get_rank() // 2


def requests_of_replica():
    """Replica 0 has prompts of 7 and 10 tokens, replica 1 one of 13."""
    return [Request(1, 7), Request(2, 10)] if replica() == 0 else [Request(1, 13)]


def busy_idle_busy():
    """Replica 1 has nothing to do in the second step; in the third its request decodes."""
    steps = {
        0: [lambda r: r[:1], lambda r: r, lambda r: r, lambda r: r],
        1: [lambda r: r, lambda r: [], lambda r: r, lambda r: []],
    }
    return served(steps[replica()])


def test_two_replicas_of_two_ranks_serve_busy_and_idle(four_ranks):
    results = four_ranks.run(busy_idle_busy)
    for differences, tokens, expected, _ in results:
        assert max(max(pair) for pair in differences) < 1e-5
        assert tokens == expected
        assert all(len(found) > 7 for found in tokens)
    assert len({agreements for *_, agreements in results}) == 1
    assert results[0][1] != results[2][1]


def chunked():
    """A prompt of 13 in chunks of 5 beside a decode, then decodes; and the same prompts whole."""
    runner, whole = prefilling(), packed()
    mine = [Request(1, 4), Request(2, 13, chunk=5)]
    for _ in range(5):
        logits = runner.step(inputs_of(mine), step_of(mine, 2))
        advance(mine, logits)
    alone = [Request(1, 4), Request(2, 13)]
    while len(alone[0].tokens) < len(mine[0].tokens) or len(alone[1].tokens) < len(mine[1].tokens):
        running = [r for r, m in zip(alone, mine, strict=True) if len(r.tokens) < len(m.tokens)]
        advance(running, whole(**inputs_of(running)))
    lengths = {request.slot: request.num_computed for request in mine}
    differences = [
        (a.cache[:, slot, :length] - b.cache[:, slot, :length]).abs().amax((0, 2)).max().item()
        for a, b in zip(runner.fn.layers, whole.layers, strict=True)
        for slot, length in lengths.items()
    ]
    return max(differences), [r.tokens for r in mine] == [r.tokens for r in alone], [*lengths.values()]


def test_a_prompt_in_chunks_leaves_the_whole_prompts_cache_slot_by_slot(two_ranks):
    for difference, tokens_equal, lengths in two_ranks.run(chunked):
        assert difference < 1e-5
        assert tokens_equal
        assert lengths == [8, 15]


def sabotaged(fault):
    with pytest.MonkeyPatch.context() as patched:
        FAULTS[fault](patched)
        return served([lambda r: r])[0][0]


def order_not_restored(patched):
    patched.setattr(ContextBatch, "restore_indices", lambda self, rank, size: tuple(range(self.num_tokens)))


def chunk_swapped(patched):
    """Rank 1 runs rank 0's rows; where rows go is computed as before."""
    sources, restore = ContextBatch.sources, ContextBatch.restore_indices
    patched.setattr(ContextBatch, "sources", lambda self, rank: sources(self, 0))

    def unharmed(self, rank, size):
        with pytest.MonkeyPatch.context() as whole:
            whole.setattr(ContextBatch, "sources", sources)
            return restore(self, rank, size)

    patched.setattr(ContextBatch, "restore_indices", unharmed)


FAULTS = {fault.__name__: fault for fault in (order_not_restored, chunk_swapped)}


@pytest.mark.parametrize("fault", FAULTS)
def test_differs_when_sabotaged(two_ranks, fault):
    for logits, cache in two_ranks.run(sabotaged, fault):
        assert min(logits, cache) > 1e-2


def refused(brings):
    """What each rank is told, and that the next step is served."""
    runner = prefilling()
    request = Request(1, 8 if brings == "other requests" and dist.get_rank() else 7)
    step = inputs_of([request])
    if brings == "unfit inputs" and dist.get_rank():
        step["slots"] = step["slots"].double()
    if brings == "no requests" and dist.get_rank():
        found = caught(lambda: runner.idle_step({}))
    else:
        found = caught(lambda: runner.step(step, step_of([request], 2)))
    good = [Request(1, 5)]
    return found[:2], len(runner.step(inputs_of(good), step_of(good, 2)))


@pytest.mark.parametrize(
    ("brings", "kinds", "message"),
    [
        (
            "other requests",
            ["GroupMismatchError"] * 2,
            "rank 0 brings prefills of [7] rows, 0 rows of decodes, rank 1 brings prefills of [8] rows",
        ),
        ("no requests", ["GroupMismatchError"] * 2, "rank 1 brings no requests"),
        ("unfit inputs", ["GroupMismatchError", "ConfigError"], "input 'slots' is torch.float64"),
    ],
)
def test_what_one_rank_cannot_run_is_refused_by_all(two_ranks, brings, kinds, message):
    """Both batches of other requests bring 4 rows to each rank: the number alone would not show it."""
    results = two_ranks.run(refused, brings)
    assert [kind for (kind, _), _ in results] == kinds
    assert all(message in words for (_, words), _ in results)
    assert [rows for _, rows in results] == [5, 5]


def drafting(skips):
    """A target splits its rows, its draft runs all rows on every rank: what was agreed on, and planned."""
    target, draft = prefilling(name="target"), prefilling(context=1, name="draft")
    requests, agreed, planned = [Request(1, 7)], [], []

    def steps():
        for _ in range(2):
            logits = target.step(inputs_of(requests), step_of(requests, 2))
            agreed.append(target.last_step.tokens_by_rank)
            if not (skips and dist.get_rank() == 1):
                draft.step(inputs_of(requests), step_of(requests, 1))
                agreed.append(draft.last_step.tokens_by_rank)
            advance(requests, logits)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ContextBatch, "__post_init__", lambda self: planned.append(self.pcp_size))
        error = caught(steps)
    return error[:2], agreed, planned


def test_a_draft_agrees_on_whole_rows_apart_and_each_plans_once(two_ranks):
    for error, agreed, planned in two_ranks.run(drafting, False):
        assert error == ("none", "")
        assert planned == [2, 1] * 2
        assert agreed == [{0: rows, 1: rows} for rows in (4, 7, 1, 1)]


def test_a_draft_skipped_on_one_rank_is_named(two_ranks):
    for (kind, message), *_ in two_ranks.run(drafting, True):
        assert kind == "GroupMismatchError"
        assert "rank 0 is at agreement 3 of 'draft'" in message
        assert "rank 1 is at agreement 4 of 'target'" in message
