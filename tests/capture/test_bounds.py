import pytest

from oproj_pass.capture import StepBound
from oproj_pass.errors import ConfigError


@pytest.mark.parametrize(
    ("seqs", "tokens", "drafts", "largest"),
    [(100, 8192, 0, 100), (100, 8192, 3, 400), (6, 64, 6, 42), (6, 41, 6, 41), (1, 1, 7, 1)],
)
def test_largest_step_is_the_smaller_of_both_limits(seqs, tokens, drafts, largest):
    assert StepBound(seqs, tokens, drafts).max_decode_tokens == largest


@pytest.mark.parametrize(
    ("seqs", "tokens", "drafts", "idle"), [(8, 64, 0, 1), (8, 64, 3, 4), (6, 6, 7, 6), (1, 1, 7, 1)]
)
def test_an_idle_rank_brings_one_request_that_fits_the_token_limit(seqs, tokens, drafts, idle):
    bound = StepBound(seqs, tokens, drafts)
    assert bound.idle_tokens == idle == bound.reachable_steps()[0]


def test_steps_are_whole_requests_and_the_step_that_fills_the_token_limit():
    assert StepBound(3, 100, 2).reachable_steps() == (3, 6, 9)
    assert StepBound(3, 8, 2).reachable_steps() == (3, 6, 8)
    assert StepBound(1, 2, 4).reachable_steps() == (2,)


@pytest.mark.parametrize(("ceiling", "step"), [(100, 42), (42, 42), (41, 35), (7, 7), (6, None)])
def test_largest_step_within_a_ceiling_is_whole_requests(ceiling, step):
    assert StepBound(6, 64, 6).largest_step_within(ceiling) == step


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_num_seqs", 0),
        ("max_num_seqs", True),
        ("max_num_seqs", "8"),
        ("max_num_batched_tokens", 8192.0),
        ("num_speculative_tokens", -1),
        ("num_speculative_tokens", None),
    ],
)
def test_refuses_a_bad_limit_naming_field_and_value(field, value):
    limits = {"max_num_seqs": 8, "max_num_batched_tokens": 64, field: value}
    with pytest.raises(ConfigError, match=f"{field}={value!r}"):
        StepBound(**limits)


def test_refuses_fewer_tokens_than_requests_as_vllm_does():
    with pytest.raises(ConfigError, match="max_num_batched_tokens=64 is below max_num_seqs=77"):
        StepBound(77, 64)
