"""Rule 15 in the real scheduler, under a KV cache that is too small for the requests it admits."""

from unittest.mock import patch

import pytest

from tests.vllm.support.engine import COMPILED, build_engine
from tests.vllm.support.process import run_ranks
from tests.vllm.support.scheduling import OFFLOAD

pytestmark = pytest.mark.timeout(900)  # several engines start, one after the other

PROMPTS = [[[first + rank, 6, 7] * 10 for first in (5, 50, 90)] for rank in (0, 1)]  # by rank
NUM_ANSWERS = 40
TIGHT = {
    "block_size": 32,
    "num_gpu_blocks_override": 7,  # one of them unused: three prompts fit, two requests with their answers do
    "max_model_len": 128,
    "kv_transfer_config": OFFLOAD,
}


def serve(llm, prompts, pool_tokens):
    """Per request its tokens, finish reason and stop reason; and how many preemptions there were."""
    from vllm import SamplingParams
    from vllm.v1.core.sched.scheduler import Scheduler

    preempt, preempted = Scheduler._preempt_request, []

    def recording(self, request, *args, **kwargs):
        preempted.append(request.request_id)
        return preempt(self, request, *args, **kwargs)

    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    scheduler.connector.pool_tokens = pool_tokens
    with patch.object(Scheduler, "_preempt_request", recording):
        finished = llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            SamplingParams(max_tokens=NUM_ANSWERS, temperature=0, ignore_eos=True),
            use_tqdm=False,
        )
    outputs = [request.outputs[0] for request in finished]
    return [(list(out.token_ids), out.finish_reason, out.stop_reason) for out in outputs], len(preempted)


def serve_by_vllm(rank, model):
    """Every rank's requests one by one and together, of an unsharded engine; what it preempts it forgets."""
    llm = build_engine(model, **TIGHT)
    alone = [[serve(llm, [prompt], 0)[0][0] for prompt in prompts] for prompts in PROMPTS]
    return alone, [serve(llm, prompts, 0) for prompts in PROMPTS]


def serve_sharded(rank, model):
    """This rank's requests, with room for what is preempted and without."""
    llm = build_engine(model, size=2, compilation=COMPILED, **TIGHT)
    return {pool: serve(llm, PROMPTS[rank], tokens) for pool, tokens in {"room": 10_000, "none": 0}.items()}


@pytest.fixture(scope="module")
def by_vllm(checkpoints):
    (found,) = run_ranks(serve_by_vllm, checkpoints["qwen3_moe"], world=1)
    return found


@pytest.fixture(scope="module")
def alone(by_vllm):
    """By rank, what each request gives where nothing is preempted."""
    return by_vllm[0]


@pytest.fixture(scope="module")
def sharded(checkpoints):
    return run_ranks(serve_sharded, checkpoints["qwen3_moe"])


def test_vllm_computes_a_preempted_request_anew_where_nothing_is_split(by_vllm):
    for requests, num_preemptions in by_vllm[1]:
        assert num_preemptions > 0
        assert [(len(tokens), finish) for tokens, finish, _ in requests] == [(NUM_ANSWERS, "length")] * 3


def test_a_request_whose_offload_succeeds_goes_on_as_if_nothing_had_happened(alone, sharded):
    for found, expected in zip(sharded, alone, strict=True):
        requests, num_preemptions = found["room"]
        assert num_preemptions > 0
        assert requests == expected


def test_a_request_whose_offload_fails_is_aborted_with_the_error_and_the_others_live(alone, sharded):
    for found, expected in zip(sharded, alone, strict=True):
        requests, num_preemptions = found["none"]
        aborted = [request for request in requests if request[1] == "error"]
        assert 0 < len(aborted) == num_preemptions < len(requests)
        for (tokens, finish, stop), whole in zip(requests, expected, strict=True):
            if finish == "error":
                assert tokens == whole[0][: len(tokens)]
                assert 0 < len(tokens) < NUM_ANSWERS
                assert "could not be offloaded (0 of " in stop
                assert "oproj_tensor_parallel_size=2 it is aborted" in stop
            else:
                assert (tokens, finish, stop) == whole
