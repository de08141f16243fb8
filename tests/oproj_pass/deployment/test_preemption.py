"""Rule 15."""

import pytest

from oproj_pass.deployment import PreemptionAction, PreemptionPolicy
from oproj_pass.errors import OProjError


@pytest.mark.parametrize("size", [2, 8])
def test_aborts_the_request_with_an_explicit_error_under_a_real_split(size):
    outcome = PreemptionPolicy(size).on_offload_failure("req-7", "no free CPU block")
    assert outcome.action is PreemptionAction.ABORT
    assert outcome.request_id == "req-7"
    assert isinstance(outcome.error, OProjError)
    for part in (
        "req-7",
        "no free CPU block",
        f"oproj_tensor_parallel_size={size}",
        "cpu_bytes_to_use_per_rank",
    ):
        assert part in str(outcome.error)


@pytest.mark.parametrize("size", [0, 1])
def test_returns_the_request_to_prefill_without_one(size):
    outcome = PreemptionPolicy(size).on_offload_failure("req-7", "no free CPU block")
    assert outcome.action is PreemptionAction.RETURN_TO_PREFILL
    assert outcome.error is None


def test_follows_the_size_that_rule_13_left(check):
    report = check(max_num_seqs=600)
    outcome = PreemptionPolicy(report.oproj_tensor_parallel_size).on_offload_failure("r", "full")
    assert outcome.action is PreemptionAction.RETURN_TO_PREFILL
    assert PreemptionPolicy(check().oproj_tensor_parallel_size).on_offload_failure("r", "full").error
