"""The backend for prefills: any inner backend, and no hang when ranks bring other prompts."""

import pytest
import torch
import torch.distributed as dist

import oproj_pass
from oproj_pass.errors import GroupMismatchError
from tests.support.prefill import prefill, tokens


def compiled(**options):
    model = prefill(kind="masked")
    backend = oproj_pass.context_parallel(timeout=20, **options)
    return model, torch.compile(model, backend=backend, fullgraph=True)


def logits_by_aot():
    model, split = compiled(inner_backend="aot_eager")
    with torch.inference_mode():
        inputs = tokens(9), torch.zeros(1, dtype=torch.int64)
        return (split(*inputs)[0] - model(*inputs)[0]).abs().max().item()


def test_compiles_with_another_backend(two_ranks):
    assert max(two_ranks.run(logits_by_aot)) < 1e-5


def other_lengths():
    _, split = compiled()
    ids = tokens(7 + 2 * dist.get_rank())
    torch._dynamo.mark_dynamic(ids, 1)
    with torch.inference_mode(), pytest.raises(GroupMismatchError) as error:
        split(ids, torch.zeros(1, dtype=torch.int64))
    return str(error.value)


def test_ranks_that_bring_other_prompts_are_told(two_ranks):
    for message in two_ranks.run(other_lengths):
        assert "rank 0 brings 7 rows, rank 1 brings 9 rows" in message
