"""A step of decodes and prefills: every rank runs each decode, and its chunks of each prefill."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oproj_pass.capture import ContextBatch, ContextSplit, dispatch_size
from oproj_pass.errors import ConfigError

requests = st.lists(st.tuples(st.integers(1, 30), st.booleans()), min_size=1, max_size=6)


def batch_of(pcp_size, batch):
    lengths, is_prefill = zip(*batch, strict=True)
    return ContextBatch(pcp_size, lengths, is_prefill)


def test_decodes_come_first_and_whole():
    batch = ContextBatch(2, (8, 2), (True, False))
    assert batch.sources(0) == (8, 9, 0, 1, 6, 7)
    assert batch.sources(1) == (8, 9, 2, 3, 4, 5)
    assert str(batch) == "prefills of [8] rows, 2 rows of decodes"


@given(st.integers(1, 5), requests, st.integers(0, 4), st.data())
def test_every_rank_finds_every_row_among_those_of_all(pcp_size, requests, padding, data):
    batch, rank = batch_of(pcp_size, requests), data.draw(st.integers(0, pcp_size - 1))
    size = batch.local_total + padding
    gathered = [row for place in range(pcp_size) for row in padded(batch.sources(place), size)]
    assert [gathered[index] for index in batch.restore_indices(rank, size)] == [*range(batch.num_tokens)]


@given(st.integers(1, 5), requests, st.data())
def test_a_rank_takes_decodes_from_itself(pcp_size, requests, data):
    batch, rank = batch_of(pcp_size, requests), data.draw(st.integers(0, pcp_size - 1))
    size = batch.local_total
    decodes = [row for row, prefill in enumerate(by_row(requests)) if not prefill]
    assert {batch.restore_indices(rank, size)[row] // size for row in decodes} <= {rank}


@given(st.integers(1, 5), requests)
def test_the_largest_rank_is_what_the_step_brings_to_dispatch(pcp_size, requests):
    batch = batch_of(pcp_size, requests)
    held = [len(batch.sources(rank)) for rank in range(pcp_size)]
    assert max(held) == batch.local_total == dispatch_size(pcp_size, batch.lengths, batch.is_prefill)


@given(st.integers(1, 5), st.lists(st.integers(1, 30), min_size=1, max_size=4).map(tuple))
def test_prefills_alone_are_held_as_their_split_says(pcp_size, lengths):
    batch, split = ContextBatch(pcp_size, lengths, (True,) * len(lengths)), ContextSplit(pcp_size, lengths)
    for rank in range(pcp_size):
        assert batch.sources(rank) == tuple(row for row in split.sources(rank) if row is not None)
        assert batch.restore_indices(rank, split.local_total) == split.restore_indices()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ContextBatch(2, (3, 4), (True,)), "lengths has 2 requests but is_prefill has 1"),
        (lambda: ContextBatch(2, (0,), (True,)), "lengths=0 must be at least 1"),
        (lambda: ContextBatch(2, (3,), (True,)).restore_indices(2, 3), "rank=2 must be below pcp_size=2"),
    ],
)
def test_refuses_what_is_no_batch(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def padded(rows, size):
    return [*rows, *[None] * (size - len(rows))]


def by_row(requests):
    return [prefill for length, prefill in requests for _ in range(length)]
