"""A row survives the wire whatever it says."""

from hypothesis import given
from hypothesis import strategies as st

from oproj_pass.capture import GraphMode
from oproj_pass.runtime.wire import ROW_BYTES, StepKind, StepRow

ROWS = st.builds(
    StepRow,
    st.text(max_size=16),
    st.sampled_from(StepKind),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.sampled_from(GraphMode),
    st.text(max_size=100),
)


@given(ROWS)
def test_a_row_comes_back_as_it_was(row):
    assert StepRow.unpack(row.pack()) == row


@given(ROWS, st.text(min_size=200))
def test_long_words_are_cut_and_never_grow_the_row(row, words):
    packed = StepRow(row.runner, row.kind, row.meeting, row.num_tokens, row.mode, words).pack()
    assert len(packed) == ROW_BYTES
    arrived = StepRow.unpack(packed).words
    assert words.startswith(arrived)
    assert len(arrived.encode()) > 400 or arrived == words
