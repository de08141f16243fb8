import pytest
from hypothesis import given
from hypothesis import strategies as st

from oproj_pass.capture import ContextSplit, dispatch_size
from oproj_pass.errors import ConfigError

PAD = "pad"


def gather(split, rows):
    return [row for rank in range(split.pcp_size) for row in split.shard(rows, rank, PAD)]


def test_a_rank_holds_one_early_and_one_late_chunk_of_each_sequence():
    split = ContextSplit(2, (8, 12))
    assert split.sources(0) == (0, 1, 6, 7, 8, 9, 10, 17, 18, 19)
    assert split.sources(1) == (2, 3, 4, 5, 11, 12, 13, 14, 15, 16)


def test_padding_follows_the_rows_of_a_rank_that_holds_less():
    split = ContextSplit(2, (5, 7))
    assert split.sources(0) == (0, 1, 5, 6, 11, None, None)
    assert split.sources(1) == (2, 3, 4, 7, 8, 9, 10)


@pytest.mark.parametrize(("lengths", "rank_0", "rank_1"), [((5, 7), (2, 5), (3, 4)), ((), (), ())])
def test_lengths_for_attention_add_up_to_the_rows(lengths, rank_0, rank_1):
    split = ContextSplit(2, lengths)
    assert (split.local_lengths(0), split.local_lengths(1)) == (rank_0, rank_1)
    assert sum(rank_0) == sum(rank_1) == split.local_total


@pytest.mark.parametrize("length", [1, 3])
def test_a_sequence_too_short_for_two_chunks_a_rank_leaves_the_last_ones_empty(length):
    # pytorch#183968, with 4 and 7 below
    split = ContextSplit(2, (length,))
    held = [source for rank in range(2) for source in split.sources(rank) if source is not None]
    assert held == list(range(length))


@pytest.mark.parametrize(("length", "rank_0"), [(4, (0, 3)), (7, (0, 1, 6, None))])
def test_a_sequence_of_two_chunks_a_rank_is_balanced(length, rank_0):
    assert ContextSplit(2, (length,)).sources(0) == rank_0


@pytest.mark.parametrize(
    ("pcp_size", "lengths"),
    [
        (2, (8, 12)),
        (2, (5, 7, 1, 3)),
        (4, (16, 8, 24)),
        (4, (1,)),
        (2, (1,)),
        (2, (3,)),
        (2, (4,)),
        (2, (7,)),
        (2, ()),
    ],
)
def test_restores_order_and_length_exactly(pcp_size, lengths):
    split = ContextSplit(pcp_size, lengths)
    rows = [f"row {i}" for i in range(sum(lengths))]
    assert split.restore(gather(split, rows)) == rows


@given(st.integers(1, 8), st.lists(st.integers(1, 50), max_size=6).map(tuple))
def test_every_row_is_held_once_and_every_rank_holds_as_many(pcp_size, lengths):
    split = ContextSplit(pcp_size, lengths)
    rows = list(range(sum(lengths)))
    gathered = gather(split, rows)
    assert sorted(row for row in gathered if row != PAD) == rows
    assert {len(split.sources(rank)) for rank in range(pcp_size)} == {split.local_total}
    assert split.restore(gathered) == rows
    assert all(sum(split.local_lengths(rank)) == split.local_total for rank in range(pcp_size))


@given(st.integers(1, 8), st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=6))
def test_a_rank_holds_as_many_rows_as_the_step_brings_to_dispatch(pcp_size, requests):
    prefills = tuple(length for length, prefill in requests if prefill)
    decode_rows = sum(length for length, prefill in requests if not prefill)
    size = dispatch_size(pcp_size, [length for length, _ in requests], [prefill for _, prefill in requests])
    split = ContextSplit(pcp_size, prefills)
    assert {decode_rows + len(split.sources(rank)) for rank in range(pcp_size)} == {size}


@pytest.mark.parametrize(("length", "rows"), [(9, 3), (16, 4), (3, 1)])
def test_four_ranks_hold_no_row_more_than_they_dispatch(length, rows):
    assert ContextSplit(4, (length,)).local_total == dispatch_size(4, [length], [True]) == rows


def test_rows_in_another_rank_order_are_not_restored():
    split = ContextSplit(2, (8, 12))
    rows = list(range(20))
    gathered = gather(split, rows)
    swapped = gathered[split.local_total :] + gathered[: split.local_total]
    assert split.restore(swapped) != rows


def test_one_rank_keeps_the_batch_as_it_is():
    split = ContextSplit(1, (5, 1, 8))
    assert split.sources(0) == split.restore_indices() == tuple(range(14))


def test_refuses_to_shard_or_restore_twice():
    split = ContextSplit(2, (8, 12))
    rows = list(range(20))
    with pytest.raises(ConfigError, match="10 rows given, but the whole batch"):
        split.shard(split.shard(rows, 0, PAD), 0, PAD)
    split = ContextSplit(2, (5, 7))
    restored = split.restore(gather(split, list(range(12))))
    with pytest.raises(ConfigError, match="12 rows given, but 2 ranks' gathered rows"):
        split.restore(restored)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ContextSplit(0, (8,)), "pcp_size=0 must be at least 1"),
        (lambda: ContextSplit(2, (8, 0)), "lengths=0 must be at least 1"),
        (lambda: ContextSplit(2, (8,)).sources(2), "rank=2 must be below pcp_size=2"),
        (lambda: ContextSplit(2, (8,)).sources(-1), "rank=-1 must be at least 0"),
    ],
)
def test_refuses_what_is_no_split(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
