"""The backend for prefills: any inner backend, and no hang when ranks bring other prompts."""

from functools import partial

import pytest
import torch
import torch.distributed as dist

import oproj_pass
from oproj_pass.backend import oproj_npu
from oproj_pass.errors import GroupMismatchError
from oproj_pass.groups import shard_group
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


def vocabulary_over_all_ranks():
    """Pairs share prompts, all four ranks the embedding's and the head's weights: 42 tokens, padded to 44."""
    sizes = {"lmhead_tensor_parallel_size": 4, "embedding_tensor_parallel_size": 4}
    options = {"oproj_tensor_parallel_size": 0, **sizes, "timeout": 20}
    model, whole = prefill(vocabulary=42), prefill(vocabulary=42)
    backend = oproj_pass.context_parallel(
        shard_group(2, None, 20).device, inner_backend=partial(oproj_npu, options=options), timeout=20
    )
    split = torch.compile(model, backend=backend, fullgraph=True)
    inputs = tokens(9), torch.zeros(1, dtype=torch.int64)
    with torch.inference_mode():
        difference = (split(*inputs)[0] - whole(*inputs)[0]).abs().max().item()
    return difference, sorted(weight.path for weight in oproj_pass.shard_report(model).weights)


def test_embedding_and_head_share_their_weights_over_more_ranks_than_prompts(four_ranks):
    for difference, sharded in four_ranks.run(vocabulary_over_all_ranks):
        assert difference < 1e-5
        assert sharded == ["embed.weight", "head.weight"]


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
