"""Four data-parallel ranks: two groups of two, and one group of four that shares every role."""

import pytest

from tests.vllm.support.engine import COMPILED, build_engine, greedy, take_the_slices_of, weights
from tests.vllm.support.process import run_ranks

pytestmark = pytest.mark.timeout(900)  # several engines start, one after the other

PROMPTS = [[[5, 6, 7, 8]], [[9] * 20, [10, 11]], [], [[12, 13], [14], [15] * 33]]  # by rank
PAIRS = {"oproj": 2}
FOUR = dict.fromkeys(("oproj", "mlp", "lmhead", "embedding"), 4)


def decode_alone(rank, model):
    """Every rank's tokens, of one unsharded engine."""
    llm = build_engine(model)
    return [greedy(llm, prompts) if prompts else [] for prompts in PROMPTS]


def decode(rank, model, sizes):
    """This rank's tokens and weights, and its tokens once each rank holds its neighbour's slices."""
    llm = build_engine(model, size=sizes, compilation=COMPILED)
    found = {"tokens": greedy(llm, PROMPTS[rank]), "weights": weights(llm, "weight")}
    take_the_slices_of(rank ^ 1, llm)
    return found | {"tokens of wrong slices": greedy(llm, PROMPTS[rank])}


@pytest.fixture(scope="module")
def alone(checkpoints):
    (tokens,) = run_ranks(decode_alone, checkpoints["deepseek_v3"], world=1)
    return tokens


@pytest.fixture(scope="module", params=[PAIRS, FOUR], ids=["two groups of two", "every role over four"])
def sharded(request, checkpoints):
    return request.param, run_ranks(decode, checkpoints["deepseek_v3"], request.param, world=4)


def test_every_rank_has_the_tokens_of_one_unsharded_engine(alone, sharded):
    assert [found["tokens"] for found in sharded[1]] == alone


def test_a_rank_that_computes_with_its_neighbours_slices_has_other_tokens(alone, sharded):
    assert [found["tokens of wrong slices"] for found in sharded[1]] != alone


def test_a_rank_holds_its_part_of_each_shared_weight(sharded):
    sizes, ranks = sharded
    expected = 2 if sizes == PAIRS else 6
    for found in ranks:
        shared = [facts for facts in found["weights"].values() if facts[0] == "ReleasedParameter"]
        assert len(shared) == expected
        for _, shape, stored, shard in shared:
            assert (stored, shard) == (0, shape[0] * shape[1] * 4 // sizes["oproj"])
