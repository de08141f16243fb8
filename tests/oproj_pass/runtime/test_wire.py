"""A row survives the wire whatever it says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oproj_pass.agreement.wire import ROW_BYTES, StepKind, StepRow
from oproj_pass.capture import GraphMode

ROWS = st.builds(
    StepRow,
    st.text(max_size=16),
    st.sampled_from(StepKind),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.sampled_from(GraphMode),
    st.text(max_size=100),
    st.booleans(),
)


@given(ROWS)
def test_a_row_comes_back_as_it_was(row):
    assert StepRow.unpack(row.pack()) == row


@pytest.mark.parametrize("place", [0, 2])
def test_refuses_a_row_of_an_unknown_kind_or_mode(place):
    packed = StepRow("model", StepKind.STEP, 3, 4, GraphMode.FULL).pack()
    packed[place] = 77
    with pytest.raises(ValueError, match="77"):
        StepRow.unpack(packed)


@given(ROWS, st.text(min_size=200))
def test_a_long_reason_is_cut_and_never_grows_the_row(row, reason):
    packed = StepRow(row.runner, row.kind, row.sequence, row.num_tokens, row.mode, reason).pack()
    assert len(packed) == ROW_BYTES
    arrived = StepRow.unpack(packed).reason
    assert reason.startswith(arrived)
    assert len(arrived.encode()) > 400 or arrived == reason
