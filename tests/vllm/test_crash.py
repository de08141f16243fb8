"""A rank that dies takes its peer down with an error, and soon."""

import os

import pytest

from tests.vllm.support.engine import COMPILED, build_engine, greedy
from tests.vllm.support.process import rank_outcomes

pytestmark = pytest.mark.timeout(900)  # several engines start, one after the other


def decode_until_one_dies(rank, model):
    llm = build_engine(model, size=2, compilation=COMPILED)
    greedy(llm, [[5, 6, 7]], 2)
    if rank == 1:
        os._exit(13)
    greedy(llm, [[5, 6, 7]], 50)


def test_the_peer_of_a_dead_rank_ends_with_an_error(checkpoints):
    survivor, dead = rank_outcomes(decode_until_one_dies, checkpoints["qwen3_moe"], timeout=240)
    assert dead == ("lost", "process ended with exit code 13")
    assert survivor[0] == "error"
    assert "Connection" in survivor[1]
