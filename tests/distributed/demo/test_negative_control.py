"""A wrong slice must show, or the demonstration's equal tokens would prove nothing."""

import pytest

pytestmark = pytest.mark.distributed


def test_tokens_differ_and_the_run_fails_when_one_rank_holds_the_wrong_slice(run_ranks, two_ranks):
    run = run_ranks(two_ranks, max_tokens=4, wrong_slice=True)
    assert run.status == 1, run.stderr
    assert not run.facts["tokens_equal"]
    assert not all(answer["equal"] for rank in run.facts["ranks"] for answer in rank["answers"])


def test_the_same_run_with_the_right_slices_succeeds(run_ranks, two_ranks):
    run = run_ranks(two_ranks, max_tokens=4)
    assert run.status == 0, run.stderr
    assert run.facts["tokens_equal"]
