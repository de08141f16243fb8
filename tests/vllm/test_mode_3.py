"""vLLM's own compilation: the pass runs before it splits the graph into pieces."""

import pytest

from tests.vllm.support.engine import build_engine, greedy, output_projections
from tests.vllm.support.process import run_ranks

pytestmark = pytest.mark.timeout(900)  # several engines start, one after the other

PROMPTS = [[[5, 6, 7, 8]], [[9, 10, 11]]]


def decode(rank, model, size):
    from tests.vllm.support.compile_mode import keep_mode_3

    keep_mode_3()
    llm = build_engine(model, size=size, compilation={"mode": 3, "backend": "eager"})
    mode = int(llm.llm_engine.vllm_config.compilation_config.mode)
    return mode, greedy(llm, PROMPTS[rank]), output_projections(llm)


def test_tokens_are_the_unsharded_ones_on_both_ranks(checkpoints):
    model = checkpoints["qwen3_moe"]
    unsharded, sharded = run_ranks(decode, model, 0), run_ranks(decode, model, 2)
    for (mode, tokens, _), (sharded_mode, sharded_tokens, projections) in zip(
        unsharded, sharded, strict=True
    ):
        assert (mode, sharded_mode) == (3, 3)
        assert sharded_tokens == tokens
        assert {kind for kind, *_ in projections.values()} == {"ReleasedParameter"}
