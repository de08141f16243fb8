import pytest
from hypothesis import given
from hypothesis import strategies as st

from oproj_pass.capture import dispatch_size
from oproj_pass.capture.pcp import is_prefilling
from oproj_pass.errors import ConfigError


@pytest.mark.parametrize(
    ("pcp_size", "lengths", "is_prefill", "size"),
    [
        (2, [8], [True], 4),
        (2, [7], [True], 4),
        (2, [3], [False], 3),
        (2, [3, 8], [False, True], 7),
        (4, [2, 9], [False, True], 5),
        (1, [5, 3], [True, False], 8),
        (2, [], [], 0),
    ],
)
def test_largest_rank_decides(pcp_size, lengths, is_prefill, size):
    assert dispatch_size(pcp_size, lengths, is_prefill) == size


@pytest.mark.parametrize(
    ("prompt_len", "num_computed", "prefill"),
    [(100, 0, True), (100, 98, True), (100, 99, False), (100, 100, False), (100, 103, False), (1, 0, False)],
)
def test_a_prompt_with_one_token_left_is_a_decode(prompt_len, num_computed, prefill):
    assert is_prefilling(prompt_len, num_computed) is prefill


@given(st.integers(1, 8), st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=6))
def test_lies_between_the_mean_share_and_the_whole_batch(pcp_size, requests):
    lengths = [length for length, _ in requests]
    flags = [prefill for _, prefill in requests]
    size = dispatch_size(pcp_size, lengths, flags)
    replicated = sum(length for length, prefill in requests if not prefill)
    shared = sum(length for length, prefill in requests if prefill)
    assert replicated + shared / pcp_size <= size <= replicated + shared


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, [8], [True]), "pcp_size=0 must be at least 1"),
        ((2, [8, 0], [True, True]), "lengths=0 must be at least 1"),
        ((2, [8, 3], [True]), "lengths has 2 requests but is_prefill has 1"),
    ],
)
def test_refuses_a_batch_it_cannot_count(arguments, message):
    with pytest.raises(ConfigError, match=message):
        dispatch_size(*arguments)
