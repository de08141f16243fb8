"""The report says what the facts say."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from oproj_pass.capture import StepBound, plan_capture
from oproj_pass.demo.facts import Answer, DemoFacts, RankFacts, Refusal
from oproj_pass.demo.render import render


def answer(request_id, token_ids, reference, finish_reason="length", **fields):
    return Answer(
        request_id=request_id,
        prompt="Why is the sky blue?",
        text="Because.",
        arrival_step=0,
        urgent=False,
        num_preemptions=fields.get("num_preemptions", 0),
        finish_reason=finish_reason,
        error=fields.get("error"),
        token_ids=token_ids,
        reference_token_ids=reference,
    )


@pytest.fixture
def facts():
    refusal = Refusal(4, "EagerStepError", "rank 0 brings 4 tokens")
    weights = ("model.layers.0.self_attn.o_proj.weight",)
    memory = (weights, 100, 50, 50, {"oproj": 50})
    ranks = [
        RankFacts(0, *memory, [1, 3, 2], [3, 3, 3], [answer("r1", [5, 6], [5, 6])], refusal),
        RankFacts(1, *memory, [2, 0, 1], [3, 3, 3], [answer("r2", [7, 8], [7, 8])], refusal),
    ]
    return DemoFacts("tiny", 1, 2, plan_capture(StepBound(3, 3), budget=2), ranks)


def with_answer(facts, wrong):
    return replace(facts, ranks=[replace(facts.ranks[0], answers=[wrong]), *facts.ranks[1:]])


def text_of(facts):
    console = Console(file=io.StringIO(), width=100)
    render(facts, console)
    return console.file.getvalue()


def test_confirms_equal_tokens_with_their_number(facts):
    assert facts.tokens_equal
    assert "✓ All 4 tokens of 2 answers equal the unsharded model's." in text_of(facts)


@pytest.mark.parametrize(
    ("token_ids", "reference", "num_equal"), [([5, 9], [5, 6], 1), ([5], [5, 6], 1), ([5, 6, 7], [5, 6], 2)]
)
def test_names_the_answers_that_differ(facts, token_ids, reference, num_equal):
    wrong = answer("r1", token_ids, reference)
    text = text_of(with_answer(facts, wrong))
    assert wrong.num_equal == num_equal
    assert "✗ 1 of 2 answers differ from the unsharded model's: r1." in text
    assert f"{num_equal}/{len(reference)} ✗" in text
    assert "✓ All" not in text


def test_compares_an_aborted_answer_as_far_as_it_got(facts):
    assert answer("r1", [5], [5, 6], "abort").equal
    assert not answer("r1", [6], [5, 6], "abort").equal
    error = "request r1 was preempted"
    text = text_of(with_answer(facts, answer("r1", [5], [5, 6], "abort", error=error)))
    assert f"r1 was aborted: {error}" in text


def test_adds_up_what_all_ranks_freed_in_readable_units(facts):
    by_role = {"oproj": 1 << 20, "lmhead+embedding": 2 << 20}
    ranks = [
        replace(
            rank, full_nbytes=4 << 20, kept_nbytes=1 << 20, freed_nbytes=3 << 20, freed_nbytes_by_role=by_role
        )
        for rank in facts.ranks
    ]
    (line,) = [
        line for line in text_of(replace(facts, ranks=ranks)).splitlines() if line.split()[:1] == ["all"]
    ]
    assert " ".join(line.split()) == "all 8.0 MiB 6.0 MiB 75.0% 2.0 MiB 4.0 MiB"


def test_ends_with_what_to_try_next(facts):
    assert "oproj explain" in text_of(facts).rpartition("unsharded model's.")[2]


def test_draws_each_rank_and_the_size_its_group_replayed(facts):
    lines = text_of(facts).splitlines()
    (first,) = [line.split()[-1] for line in lines if line.strip().startswith("rank 0 ")]
    (second,) = [line.split()[-1] for line in lines if line.strip().startswith("rank 1 ")]
    (replayed,) = [line.split()[-1] for line in lines if line.strip().startswith("replayed ")]
    assert first[0] == second[2] < first[2] == second[0] < first[1]
    assert second[1] == "·"
    assert replayed == "333"


def test_long_runs_still_fit_the_line(facts):
    ranks = [replace(rank, loads=[1] * 1000, sizes=[3] * 1000) for rank in facts.ranks]
    lines = text_of(replace(facts, ranks=ranks)).splitlines()
    assert any("1000 steps, 12 a mark" in line for line in lines)
    assert all(len(line) <= 100 for line in lines)


def test_shows_the_refusal_and_every_rank_that_raised_it(facts):
    text = text_of(facts)
    assert "EagerStepError on ranks 0 and 1" in text
    assert "rank 0 brings 4 tokens" in text


def test_says_so_if_the_oversize_step_was_not_refused(facts):
    ranks = [replace(rank, refusal=None) for rank in facts.ranks]
    assert "was not refused" in text_of(replace(facts, ranks=ranks))
