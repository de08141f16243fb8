"""The demonstration with SmolLM2-135M-Instruct's real weights, as users start it, to the verdict."""

import pytest

from tests.support.real_weights import needs_real_weights

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.model,
    pytest.mark.timeout(1300),
    needs_real_weights,
]
NUM_TOKENS = 16


def test_shards_all_roles_of_thirty_layers_and_keeps_every_token(run_demo):
    run = run_demo("--max-tokens", str(NUM_TOKENS), timeout=1200)
    assert run.status == 0, run.stderr
    facts = run.facts
    assert facts["tokens_equal"]
    answers = [answer for rank in facts["ranks"] for answer in rank["answers"]]
    assert sum(len(answer["token_ids"]) == NUM_TOKENS and answer["equal"] for answer in answers) >= 5
    size = facts["tensor_parallel_size"]
    for rank in facts["ranks"]:
        assert len(rank["weights"]) == 30 + 3 * 30 + 1
        assert set(rank["freed_nbytes_by_role"]) == {"oproj", "mlp", "lmhead+embedding"}  # one tied shard
        assert sum(rank["freed_nbytes_by_role"].values()) == rank["freed_nbytes"]
        assert rank["freed_nbytes"] * size == rank["full_nbytes"] * (size - 1)
    refused = [rank["refusal"]["error"] for rank in facts["ranks"] if rank["refusal"]]
    assert refused == ["EagerStepError", "EagerStepError"]
