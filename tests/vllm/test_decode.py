"""The same greedy tokens, sharded or not, on every rank, from a real checkpoint, whatever the ranks bring."""

import random

import pytest

from tests.vllm.support.engine import (
    COMPILED,
    build_engine,
    greedy,
    output_projections,
    stop_compiling,
    stored_graph,
    weights,
)
from tests.vllm.support.process import run_ranks

pytestmark = pytest.mark.timeout(900)  # several engines start, one after the other

SHARDED = {"compilation": COMPILED, "size": 2}
EVERY_ROLE = {"compilation": COMPILED, "size": dict.fromkeys(("oproj", "mlp", "lmhead", "embedding"), 2)}
OF_OTHER_ROLES = (
    "embed_tokens.weight",
    "lm_head.weight",
    "0.mlp.gate_up_proj.weight",
    "0.mlp.down_proj.weight",
)


def _mixed(rank):
    """A hundred requests a rank: prompts of 1 to 60 tokens, answers of 1 to 6."""
    draw = random.Random(rank)
    prompts = [[draw.randrange(3, 512) for _ in range(draw.randint(1, 60))] for _ in range(100)]
    return prompts, [draw.randint(1, 6) for _ in prompts]


def _steps(rank):
    """What this rank brings, by the name of the situation: prompts and answer lengths."""
    return {
        "equal": ([[5 + rank, 6, 7, 8]], 8),
        "uneven": ([[[9, 10, 11]], [[5] * 40, [6], [7, 8] * 9]][rank], 8),
        "idle": ([[], [[12, 13], [14]]][rank], 5),
        "mixed": _mixed(rank),
    }


def decode(rank, model, settings, situations):
    llm = build_engine(model, **settings)
    answers = {name: greedy(llm, *_steps(rank)[name]) for name in situations}
    found = {"answers": answers, "projections": output_projections(llm)}
    found["others"] = weights(llm, *OF_OTHER_ROLES)
    if settings.get("size"):
        found["prompt logprobs"] = ask_for_prompt_logprobs(llm)
        found["stored"] = stored_graph(llm)
        stop_compiling(llm)
        try:
            greedy(llm, [[5, 6]], 1)
        except Exception as error:  # the test says which it must be
            found["uncompiled"] = f"{type(error).__name__}: {error}"
    return found


def ask_for_prompt_logprobs(llm):
    """What becomes of such a request of every rank, and of a plain one after it."""
    from vllm import SamplingParams

    try:
        llm.generate([{"prompt_token_ids": [5, 6]}], SamplingParams(max_tokens=1, prompt_logprobs=1))
        refusal = None
    except Exception as error:  # the test says which it must be
        refusal = f"{type(error).__name__}: {error}"
    return refusal, len(greedy(llm, [[5, 6]], 1))


@pytest.fixture(scope="module")
def dense(checkpoints):
    """Dense attention: (unsharded eager, sharded), by rank."""
    model, situations = checkpoints["qwen3_moe"], ["equal", "uneven", "idle", "mixed"]
    return run_ranks(decode, model, {}, situations), run_ranks(decode, model, SHARDED, situations)


@pytest.fixture(scope="module")
def latent(checkpoints):
    """Multi-head latent attention: (unsharded eager, sharded with every role), by rank."""
    model, situations = checkpoints["deepseek_v3"], ["equal", "uneven", "idle", "mixed"]
    return run_ranks(decode, model, {}, situations), run_ranks(decode, model, EVERY_ROLE, situations)


def answers(run, situation):
    return [found["answers"][situation] for found in run]


@pytest.mark.parametrize("situation", ["equal", "uneven", "idle", "mixed"])
def test_sharded_tokens_are_the_eager_ones_on_both_ranks(dense, situation):
    eager, sharded = dense
    assert answers(sharded, situation) == answers(eager, situation)


@pytest.mark.parametrize("situation", ["equal", "uneven", "idle", "mixed"])
def test_every_role_sharded_has_the_eager_tokens_on_both_ranks(latent, situation):
    eager, sharded = latent
    assert answers(sharded, situation) == answers(eager, situation)


@pytest.mark.parametrize(("kind", "model"), [("dense", "qwen3_moe"), ("latent", "deepseek_v3")])
def test_the_compiled_model_has_the_eager_tokens_with_the_knob_off(kind, model, checkpoints, request):
    eager, _ = request.getfixturevalue(kind)
    compiled = run_ranks(decode, checkpoints[model], {"compilation": COMPILED}, ["equal"])
    assert answers(compiled, "equal") == answers(eager, "equal")
    for found in compiled:
        assert {kind for kind, *_ in found["projections"].values()} == {"ModelWeightParameter"}


def test_answers_differ_between_prompts(dense):
    """Else equal tokens would prove nothing."""
    distinct = {tuple(answer) for found in answers(dense[0], "equal") for answer in found}
    assert len(distinct) == 2


def test_a_rank_holds_its_half_of_each_output_projection_and_nothing_of_the_full_one(dense, latent):
    for _, sharded in (dense, latent):
        for found in sharded:
            assert len(found["projections"]) == 2
            for kind, shape, stored, shard in found["projections"].values():
                assert (kind, stored, shard) == ("ReleasedParameter", 0, shape[0] * shape[1] * 4 // 2)


def test_a_rank_holds_its_half_of_the_mlp_the_lm_head_and_the_embedding(latent):
    eager, sharded = latent
    for found in eager:
        assert {shard for *_, shard in found["others"].values()} == {None}
    for found in sharded:
        assert len(found["others"]) == len(OF_OTHER_ROLES)
        for kind, shape, stored, shard in found["others"].values():
            assert (kind, stored, shard) == ("ReleasedParameter", 0, shape[0] * shape[1] * 4 // 2)


def test_prompt_logprobs_are_refused_when_they_arrive_with_a_shared_lm_head_only(dense, latent):
    for found in dense[1]:
        assert found["prompt logprobs"] == (None, 1)
    for found in latent[1]:
        refusal, answers_after = found["prompt logprobs"]
        assert refusal.startswith("ConfigError: request")
        assert "lmhead_tensor_parallel_size=2" in refusal
        assert answers_after == 1


def test_sharded_graphs_are_stored_nowhere_and_ranks_share_no_place(dense):
    (first, stored), (second, stored_too) = (found["stored"] for found in dense[1])
    assert not stored
    assert not stored_too
    assert first != second


def test_a_step_that_is_not_compiled_is_refused_by_the_weight_itself(dense, latent):
    first = ("model.layers.0.self_attn.o_proj", "embed_tokens")
    for (_, sharded), path in zip((dense, latent), first, strict=True):
        for found in sharded:
            assert found["uncompiled"].startswith(f"EagerStepError: {path}")
