"""The same greedy tokens, sharded or not, on every rank, from a real checkpoint."""

import pytest

from tests.vllm.support.engine import COMPILED, build_engine, greedy, output_projections
from tests.vllm.support.process import run_ranks

PROMPTS = [[[5, 6, 7, 8]], [[9, 10, 11, 12]]]


def decode(rank, model, settings):
    llm = build_engine(model, **settings)
    return greedy(llm, PROMPTS[rank]), output_projections(llm)


@pytest.fixture(scope="module", params=["qwen3_moe"])
def runs(request, checkpoints):
    model = checkpoints[request.param]
    return {
        "eager": run_ranks(decode, model, {}),
        "compiled": run_ranks(decode, model, {"compilation": COMPILED}),
        "sharded": run_ranks(decode, model, {"compilation": COMPILED, "size": 2}),
    }


def tokens(run):
    return [answer for answer, _ in run]


def test_compiled_tokens_are_the_eager_ones(runs):
    assert tokens(runs["compiled"]) == tokens(runs["eager"])


def test_sharded_tokens_are_the_eager_ones_on_both_ranks(runs):
    assert tokens(runs["sharded"]) == tokens(runs["eager"])


def test_a_rank_holds_half_of_each_output_projection_and_nothing_of_the_full_one(runs):
    for _, projections in runs["sharded"]:
        assert projections
        for kind, shape, stored, shard in projections.values():
            assert (kind, stored, shard) == ("ReleasedParameter", 0, shape[0] * shape[1] * 4 // 2)
