"""Sleep mode: slices come back from level 1; level 2 takes new weights in place, or is refused at once.

A CPU has no sleep mode. What runs here is the worker's code for accelerators over a pool in main memory.
"""

import pytest

from examples.tiny_checkpoint import write_checkpoint
from tests.vllm.support.engine import COMPILED, build_engine, greedy
from tests.vllm.support.process import run_ranks

pytestmark = pytest.mark.timeout(900)  # several engines start, one after the other

REFUSAL = "this engine loaded its output projections by slice"


@pytest.fixture(scope="module")
def newer(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("newer") / "qwen3_moe", "qwen3_moe", seed=1)


def answers_of(llm, rank):
    llm.reset_prefix_cache()
    return greedy(llm, [[5 + rank, 6, 7, 8]])


def error_of(function, *args, **options):
    try:
        function(*args, **options)
    except Exception as error:  # the test says which it must be
        return f"{type(error).__name__}: {error}"
    return None


def sleeping_by_slice(rank, model):
    """Answers of an engine before, after a sleep at level 1, after refused ones, and without its weights."""
    from tests.vllm.support import sleeping

    sleeping.use()
    llm = build_engine(model, size=2, compilation=COMPILED)
    found = {"before": answers_of(llm, rank)}
    llm.sleep(level=1)
    llm.wake_up()
    found["level 1"] = answers_of(llm, rank)
    found["refusals"] = [
        error_of(llm.sleep, level=2),
        error_of(llm.collective_rpc, "sleep", kwargs={"level": 2}),
        error_of(llm.collective_rpc, "discard", args=(("weights",),)),
    ]
    found["refused"] = answers_of(llm, rank)
    sleeping.lose_weights()
    found["lost"] = answers_of(llm, rank)
    return found


def test_slices_come_back_from_level_1_and_level_2_is_refused_before_it_begins(checkpoints):
    for found in run_ranks(sleeping_by_slice, checkpoints["qwen3_moe"]):
        assert found["level 1"] == found["refused"] == found["before"]
        assert all(
            refusal.startswith("ConfigError: ") and REFUSAL in refusal for refusal in found["refusals"]
        )
        assert found["lost"] != found["before"]


def sleeping_in_full(rank, model, newer, size):
    """Answers of an engine that loaded in full: before, after level 1, after level 2 and new weights."""
    from tests.vllm.support import sleeping

    sleeping.use()
    llm = build_engine(model, size=size, compilation=COMPILED, options={"load_sharded": False})
    answers = [answers_of(llm, rank)]
    for level in (1, 2):
        llm.sleep(level=level)
        llm.wake_up()
        if level == 2:
            llm.collective_rpc("reload_weights", kwargs={"weights_path": str(newer)})
        answers.append(answers_of(llm, rank))
    return answers


def test_an_engine_that_loaded_in_full_wakes_up_as_an_unsharded_one(checkpoints, newer):
    sharded, whole = (run_ranks(sleeping_in_full, checkpoints["qwen3_moe"], newer, size) for size in (2, 0))
    assert sharded == whole
    for before, level_1, level_2 in sharded:
        assert level_1 == before != level_2
