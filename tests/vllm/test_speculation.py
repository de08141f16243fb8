"""Drafts of n-grams, whose number changes from step to step: the tokens stay, and a plan has every step."""

import pytest

from oproj_pass.capture import StepBound, plan_capture
from tests.vllm.support.engine import COMPILED, build_engine, greedy
from tests.vllm.support.process import run_ranks
from tests.vllm.support.steps import graph_modes, recording

pytestmark = pytest.mark.timeout(900)  # several engines start, one after the other

DRAFTS = 3
SPECULATION = {
    "method": "ngram",
    "num_speculative_tokens": DRAFTS,
    "prompt_lookup_max": 2,
    "prompt_lookup_min": 1,
}
PROMPTS = [[[5, 6, 7, 8], [9, 10]], [[11, 12, 13]]]  # by rank
NUM_ANSWERS = 24
MAX_NUM_SEQS = 8
SHARED = dict.fromkeys(("oproj", "lmhead", "embedding"), 2)


def decode_alone(rank, model):
    """Every rank's tokens, of one unsharded engine that does not speculate."""
    llm = build_engine(model)
    return [greedy(llm, prompts, NUM_ANSWERS) for prompts in PROMPTS]


def speculate(rank, model):
    llm = build_engine(
        model, size=SHARED, compilation=COMPILED, speculative_config=SPECULATION, max_num_seqs=MAX_NUM_SEQS
    )
    with recording(llm) as steps:
        tokens = greedy(llm, PROMPTS[rank], NUM_ANSWERS)
    decodes = [step for step in steps[1:] if step]  # the first one holds the prompts
    return {
        "tokens": tokens,
        "steps": [list(step.values()) for step in decodes],
        "modes": graph_modes(llm, decodes),
    }


@pytest.fixture(scope="module")
def alone(checkpoints):
    (tokens,) = run_ranks(decode_alone, checkpoints["qwen3_moe"], world=1)
    return tokens


@pytest.fixture(scope="module")
def speculating(checkpoints):
    return run_ranks(speculate, checkpoints["qwen3_moe"])


def test_drafts_change_no_token_on_ranks_that_share_weights(alone, speculating):
    assert [found["tokens"] for found in speculating] == alone


def test_the_depth_changes_between_steps_and_between_ranks(speculating):
    first, second = (found["steps"] for found in speculating)
    for steps in (first, second):
        assert {1, 1 + DRAFTS} <= {tokens for step in steps for tokens in step}
    assert any(max(mine) != max(theirs) for mine, theirs in zip(first, second, strict=False))


def test_vllm_has_a_graph_for_the_deepest_steps_alone(speculating):
    for found in speculating:
        for step, mode in zip(found["steps"], found["modes"], strict=True):
            assert mode == ("FULL" if set(step) == {1 + DRAFTS} else "NONE")


def test_a_plan_for_the_depths_has_a_size_for_every_one_of_these_steps(speculating):
    plan = plan_capture(StepBound(MAX_NUM_SEQS, 256, DRAFTS, tuple(range(1 + DRAFTS))))
    assert plan.covers
    for found in speculating:
        assert all(plan.dispatch(sum(step)) for step in found["steps"])
