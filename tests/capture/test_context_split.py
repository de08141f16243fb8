import pytest
from hypothesis import given
from hypothesis import strategies as st

from oproj_pass.capture import ContextSplit, dispatch_size
from oproj_pass.errors import ConfigError

PAD = "pad"


def parts(split, rows):
    """What every rank holds, gathered in rank order."""
    return [split.shard(rows, rank, PAD) for rank in range(split.pcp_size)]


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
    assert list(split.restore(parts(split, rows))) == rows


@given(st.integers(1, 8), st.lists(st.integers(1, 50), max_size=6).map(tuple), st.booleans())
def test_every_row_is_held_once_and_every_rank_holds_as_many(pcp_size, lengths, pads_each_sequence):
    split = ContextSplit(pcp_size, lengths, pads_each_sequence)
    rows = list(range(sum(lengths)))
    held = parts(split, rows)
    assert sorted(row for part in held for row in part if row != PAD) == rows
    assert {len(part) for part in held} == {split.local_total}
    assert list(split.restore(held)) == rows
    assert all(sum(split.local_lengths(rank)) == split.local_total for rank in range(pcp_size))
    assert [
        sum(split.real_lengths(rank)[place] for rank in range(pcp_size)) for place in range(len(lengths))
    ] == [*lengths]


@given(st.integers(1, 8), st.lists(st.integers(1, 50), min_size=1, max_size=6).map(tuple))
def test_padded_by_sequence_each_has_as_many_rows_on_all_ranks(pcp_size, lengths):
    split = ContextSplit(pcp_size, lengths, pads_each_sequence=True)
    assert len({split.local_lengths(rank) for rank in range(pcp_size)}) == 1
    assert 0 <= split.local_total - ContextSplit(pcp_size, lengths).local_total < len(lengths)


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


@pytest.mark.parametrize("lengths", [(8, 12), (5, 7)])
def test_refuses_rows_in_another_rank_order_or_of_another_batch(lengths):
    split = ContextSplit(2, lengths)
    rows = list(range(sum(lengths)))
    first, second = parts(split, rows)
    for wrong in ([second, first], [first], [first, first], parts(ContextSplit(2, lengths[::-1]), rows)):
        with pytest.raises(ConfigError, match="of each of ranks 0 to 1, in this order"):
            split.restore(wrong)


def test_one_rank_keeps_the_batch_as_it_is():
    split = ContextSplit(1, (5, 1, 8))
    assert split.sources(0) == split.restore_indices() == tuple(range(14))


@pytest.mark.parametrize("lengths", [(8, 12), (5, 7)])
def test_refuses_to_shard_or_restore_twice(lengths):
    """8 and 12 rows need no padding: as many are gathered as restored, and only their types differ."""
    split = ContextSplit(2, lengths)
    held = parts(split, list(range(sum(lengths))))
    with pytest.raises(ConfigError, match="rank 0's rows already"):
        split.shard(held[0], 0, PAD)
    restored = split.restore(held)
    with pytest.raises(ConfigError, match="all rows of the batch already"):
        split.restore(restored)
    with pytest.raises(ConfigError, match="found \\[None"):
        split.restore([row for part in held for row in part])


def test_refuses_to_shard_a_part_of_the_batch():
    with pytest.raises(ConfigError, match="10 rows given, but the whole batch"):
        ContextSplit(2, (8, 12)).shard(list(range(10)), 0, PAD)


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
