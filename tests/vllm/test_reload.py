"""New weights in a serving engine: every rank takes its slices, or the engine refuses and stays as it was."""

import pytest

from examples.tiny_checkpoint import write_checkpoint
from tests.vllm.support.engine import COMPILED, build_engine, greedy, output_projections
from tests.vllm.support.process import run_ranks

pytestmark = pytest.mark.timeout(900)  # several engines start, one after the other


@pytest.fixture(scope="module")
def newer(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("newer") / "qwen3_moe", "qwen3_moe", seed=1)


def reload(rank, model, newer, size, options):
    """Tokens before and after new weights arrive, the refusal if any, and the classes of the projections."""
    llm = build_engine(model, size=size, compilation=COMPILED, options=options)
    before, refusal = greedy(llm, [[5 + rank, 6, 7, 8]]), None
    try:
        llm.collective_rpc("reload_weights", kwargs={"weights_path": str(newer)})
    except Exception as error:  # the test says which it must be
        refusal = f"{type(error).__name__}: {error}"
    llm.reset_prefix_cache()
    after = greedy(llm, [[5 + rank, 6, 7, 8]])
    return before, after, refusal, {kind for kind, *_ in output_projections(llm).values()}


@pytest.fixture(scope="module")
def whole(checkpoints, newer):
    """Without the knob, by rank."""
    return run_ranks(reload, checkpoints["qwen3_moe"], newer, 0, None)


def test_shards_take_the_new_weights_of_an_engine_that_loaded_in_full(checkpoints, newer, whole):
    ranks = run_ranks(reload, checkpoints["qwen3_moe"], newer, 2, {"load_sharded": False})
    for (before, after, refusal, kinds), (old, new, *_) in zip(ranks, whole, strict=True):
        assert (before, after, refusal, kinds) == (old, new, None, {"ReleasedParameter"})
        assert old != new


def test_an_engine_that_loaded_by_slice_refuses_and_keeps_its_weights(checkpoints, newer, whole):
    ranks = run_ranks(reload, checkpoints["qwen3_moe"], newer, 2, None)
    for (before, after, refusal, _), (old, *_) in zip(ranks, whole, strict=True):
        assert before == after == old
        assert refusal.startswith("ConfigError: reload_weights: this engine loaded its output projections by")
