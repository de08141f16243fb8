"""The whole demonstration on four ranks, with a tiny model of random weights."""

import pytest

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def run(run_ranks, four_ranks):
    return run_ranks(four_ranks)


@pytest.fixture(scope="module")
def ranks(run):
    assert run.status == 0, run.stderr
    return run.facts["ranks"]


def answers_of(rank):
    return {answer["request_id"]: answer for answer in rank["answers"]}


def test_every_token_is_the_unsharded_models(run, ranks):
    assert run.facts["tokens_equal"]
    finished = [a for rank in ranks for a in rank["answers"] if a["finish_reason"] != "abort"]
    assert len(finished) >= 5
    for answer in finished:
        assert answer["token_ids"] == answer["reference_token_ids"]


def test_frees_all_but_one_slice_of_every_weight(run, ranks):
    size = run.facts["tensor_parallel_size"]
    for rank in ranks:
        assert len(rank["weights"]) == 4 * run.facts["num_layers"] + 1
        assert set(rank["freed_nbytes_by_role"]) == {"oproj", "mlp", "lmhead+embedding"}
        assert rank["freed_nbytes"] * size == rank["full_nbytes"] * (size - 1)
        assert rank["kept_nbytes"] + rank["freed_nbytes"] == rank["full_nbytes"]


def test_ranks_of_a_group_replay_the_same_size_however_uneven_their_loads(run, ranks):
    size = run.facts["tensor_parallel_size"]
    for start in range(0, len(ranks), size):
        group = ranks[start : start + size]
        assert all(rank["sizes"] == group[0]["sizes"] for rank in group)
        assert any(len(set(loads)) > 1 for loads in zip(*(rank["loads"] for rank in group), strict=True))
        for step, replayed in enumerate(group[0]["sizes"]):
            assert replayed in run.facts["plan"]["sizes"]
            assert replayed >= max(rank["loads"][step] for rank in group)


def test_a_rank_goes_idle_while_its_peer_decodes_and_comes_back(ranks):
    busy, pausing = ranks[0]["loads"], ranks[1]["loads"]
    idle = [step for step, loads in enumerate(zip(busy, pausing, strict=True)) if loads[0] and not loads[1]]
    assert idle
    assert any(pausing[: idle[0]])
    assert any(pausing[idle[0] :])


def test_the_whole_group_refuses_an_oversize_step_and_no_other_rank_hears_of_it(run, ranks):
    refusals = [rank["refusal"] for rank in ranks]
    largest = run.facts["plan"]["max_size"]
    assert [refusal and refusal["error"] for refusal in refusals] == ["EagerStepError"] * 2 + [None] * 2
    assert refusals[0]["message"] == refusals[1]["message"]
    assert f"rank 0 brings {largest + 1} tokens" in refusals[0]["message"]


def test_an_offloaded_request_comes_back_with_equal_tokens(ranks):
    (offloaded,) = [answer for answer in ranks[0]["answers"] if answer["num_preemptions"]]
    assert offloaded["finish_reason"] == "length"
    assert offloaded["equal"]


def test_a_request_that_cannot_be_offloaded_is_aborted_with_its_error(ranks):
    (aborted,) = [answer for answer in ranks[0]["answers"] if answer["finish_reason"] == "abort"]
    assert 0 < len(aborted["token_ids"]) < len(aborted["reference_token_ids"])
    assert "could not be offloaded" in aborted["error"]
    assert "aborted and not returned to the prefill node" in aborted["error"]


def test_reports_every_rank_once(ranks):
    assert [rank["rank"] for rank in ranks] == [0, 1, 2, 3]
    request_ids = [answer["request_id"] for rank in ranks for answer in rank["answers"]]
    assert len(set(request_ids)) == len(request_ids)
