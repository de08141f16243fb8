"""An operator that projects inside itself, in a running engine: the plugin takes the projection out of it."""

import pytest

from tests.vllm.support.engine import COMPILED, build_engine, greedy, output_projections
from tests.vllm.support.process import rank_outcomes, run_ranks

pytestmark = pytest.mark.timeout(900)  # several engines start, one after the other

PROMPTS = [[[5, 6, 7, 8], [9, 10]], [[11, 12, 13]]]


def decode(rank, model, size, known=True):
    from tests.vllm.support import projecting

    projecting.use(known)
    options = {"expected_sites": 2} if size else None
    llm = build_engine(model, size=size, compilation=COMPILED, options=options)
    return greedy(llm, PROMPTS[rank]), output_projections(llm)


def test_two_ranks_that_share_the_hoisted_projections_have_the_tokens_of_the_operator(checkpoints):
    model = checkpoints["deepseek_v3"]
    inside, hoisted = run_ranks(decode, model, 0), run_ranks(decode, model, 2)
    for (tokens, whole), (sharded_tokens, sharded) in zip(inside, hoisted, strict=True):
        assert sharded_tokens == tokens
        assert {kind for kind, *_ in whole.values()} == {"ModelWeightParameter"}
        assert len(sharded) == 2
        for kind, shape, stored, shard in sharded.values():
            assert (kind, stored, shard) == ("ReleasedParameter", 0, shape[0] * shape[1] * 4 // 2)
    assert inside[0][0] != inside[1][0]


def test_without_the_hoist_no_projection_is_found_and_the_engine_is_refused(checkpoints):
    for kind, error in rank_outcomes(decode, checkpoints["deepseek_v3"], 2, False):
        assert kind == "error"
        assert "SiteMismatchError: expected_sites = 2, found 0" in error
