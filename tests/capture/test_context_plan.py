"""What else a context-parallel step has to know: lengths for kernels, slots, groups, rows for experts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oproj_pass.capture import (
    ContextSplit,
    ExpertPadding,
    SlotLayout,
    consecutive_groups,
    context_lengths,
    strided_groups,
)
from oproj_pass.errors import ConfigError

sequences = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 30)), min_size=1, max_size=5)


@given(st.integers(1, 6), sequences, st.booleans(), st.data())
def test_padded_lengths_add_up_to_the_rows_that_are_there(pcp_size, batch, pads_each_sequence, data):
    lengths, starts = zip(*batch, strict=True)
    split = ContextSplit(pcp_size, lengths, pads_each_sequence)
    found = context_lengths(split, data.draw(st.integers(0, pcp_size - 1)), starts)
    assert found.padded.q_cumulative[-1] == split.local_total
    assert found.padded.kv_cumulative[-1] == pcp_size * split.local_total + sum(starts)
    assert found.real.kv == tuple(map(sum, batch))
    for real, padded in ((found.real.q, found.padded.q), (found.real.kv, found.padded.kv)):
        assert all(few <= many for few, many in zip(real, padded, strict=True))
    assert found.real.q_max <= found.padded.q_max


def test_names_the_sequences_whose_starts_do_not_fit():
    with pytest.raises(ConfigError, match="starts has 1 sequences, lengths has 2"):
        context_lengths(ContextSplit(2, (3, 4)), 0, (1,))
    with pytest.raises(ConfigError, match="starts=-1 must be at least 0"):
        context_lengths(ContextSplit(2, (3,)), 0, (-1,))


def dealt(layout, num_positions, pages):
    """Brute force: deal positions out in turn, and let each rank fill its pages one after the other."""
    held = {rank: [] for rank in range(layout.num_ranks)}
    for first in range(0, num_positions, layout.interleave):
        rank = first // layout.interleave % layout.num_ranks
        held[rank] += range(first, min(first + layout.interleave, num_positions))
    return {
        position: (rank, pages[place // layout.page_size] * layout.page_size + place % layout.page_size)
        for rank, positions in held.items()
        for place, position in enumerate(positions)
    }


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.permutations(range(6)))
def test_slots_are_those_of_positions_dealt_out_one_by_one(num_ranks, interleave, turns, pages):
    layout = SlotLayout(num_ranks, interleave * turns, interleave)
    count = layout.positions_per_page * len(pages)
    found = {position: (layout.owner(position), layout.slot(position, pages)) for position in range(count)}
    assert found == dealt(layout, count, pages)
    assert len(set(found.values())) == count


@given(st.integers(1, 4), st.integers(0, 20), st.integers(1, 20))
def test_a_chunk_of_a_prompt_writes_the_slots_that_the_whole_prompt_has(num_ranks, start, length):
    layout, pages = SlotLayout(num_ranks, 4, 2), [7, 3, 9, 1, 0, 5, 2, 4, 6, 8]
    for rank in range(num_ranks):
        whole = layout.rank_slots(rank, range(start + length), pages)
        assert layout.rank_slots(rank, range(start, start + length), pages) == whole[start:]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SlotLayout(0, 4), "num_ranks=0 must be at least 1"),
        (lambda: SlotLayout(2, 4, 3), "interleave=3 must divide page_size=4"),
        (lambda: SlotLayout(2, 4).slot(8, [0]), "position 8 needs page 2 of its sequence, which has 1"),
        (lambda: strided_groups(6, 4), "size=4 must divide world_size=6"),
        (lambda: ExpertPadding(()), "rows_by_rank is empty"),
        (lambda: ExpertPadding((2, 3)).pad([1], 0, 0), "rank 0 brings 1 rows, 2 were agreed on"),
    ],
)
def test_refuses_what_does_not_fit(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


@given(st.integers(1, 5), st.integers(1, 5))
def test_strided_groups_cross_the_consecutive_ones(stride, size):
    strided, consecutive = strided_groups(stride * size, size), consecutive_groups(stride * size, stride)
    assert sorted(rank for group in strided for rank in group) == list(range(stride * size))
    assert strided == tuple(zip(*consecutive, strict=True))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6).map(tuple))
def test_experts_get_every_row_once_and_no_padding_back(rows_by_rank):
    padding = ExpertPadding(rows_by_rank)
    held = [[(rank, row) for row in range(count)] for rank, count in enumerate(rows_by_rank)]
    gathered = [row for rank, rows in enumerate(held) for row in padding.pad(rows, rank, None)]
    assert len(gathered) == len(rows_by_rank) * padding.rows
    assert [gathered[index] for index in padding.kept()] == [row for rows in held for row in rows]
