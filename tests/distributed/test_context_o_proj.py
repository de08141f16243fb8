"""Output projections are sharded inside split prefills: over the replicas, or over the ranks of one prefill.

Four ranks: (0, 1) share one prefill, (2, 3) another of as many rows.
"""

from functools import partial

import pytest
import torch
import torch.distributed as dist

import oproj_pass
from oproj_pass.backend import oproj_npu
from oproj_pass.errors import GroupMismatchError
from tests.support.prefill import VOCABULARY, differences, prefill, tokens

PREFILLS, REPLICAS = [(0, 1), (2, 3)], [(0, 2), (1, 3)]
LAYERS, SIZE = 2, 2


def group_of_this_rank(groups):
    """Every rank makes all groups, in one order."""
    made = {ranks: dist.new_group(ranks) for ranks in groups}
    return next(group for ranks, group in made.items() if dist.get_rank() in ranks)


def step(over, lengths=(9, 9), inner_backend="eager"):
    """A compiled prefill of this rank's replica, with its inputs, and what the whole model makes of them."""
    prefill_group, shard_group = group_of_this_rank(PREFILLS), group_of_this_rank(over)
    options = {
        "oproj_tensor_parallel_size": SIZE, "group": shard_group, "expected_sites": LAYERS,
        "inner_backend": inner_backend, "timeout": 20, "step_timeout": 20,
    }  # fmt: skip
    replica = dist.get_rank() // SIZE
    inputs = (tokens(lengths[replica]) + replica) % VOCABULARY, torch.zeros(1, dtype=torch.int64)
    model = prefill(kind="masked")
    sharding = partial(oproj_npu, options=options)
    backend = oproj_pass.context_parallel(prefill_group, inner_backend=sharding, timeout=20)
    whole = model(*inputs)
    return torch.compile(model, backend=backend, fullgraph=True, dynamic=False), inputs, whole


def difference(over, length=9, inner_backend="eager"):
    split, inputs, whole = step(over, (length, length), inner_backend)
    with torch.inference_mode():
        return differences(split(*inputs), whole)


def differences_of_both():
    return [difference(over, length) for over in (REPLICAS, PREFILLS) for length in (9, 1)]


def test_computes_what_one_rank_does(four_ranks):
    """Over replicas of as many rows and over the ranks of a prefill; a prompt, and a whole decode."""
    for found in four_ranks.run(differences_of_both):
        assert max(found) < 1e-5, found


def without_exchange(gm, example_inputs):
    exchange = torch.ops._c10d_functional.all_to_all_single.default
    found = gm.graph.find_nodes(op="call_function", target=exchange)
    assert len(found) == LAYERS
    for node in found:
        node.replace_all_uses_with(node.args[0])
    gm.recompile()
    return gm.forward


def test_differs_without_the_exchange(four_ranks):
    assert min(four_ranks.run(difference, REPLICAS, 9, without_exchange)) > 1e-2


def refusal():
    split, inputs, _ = step(REPLICAS, lengths=(9, 13))
    with torch.inference_mode(), pytest.raises(GroupMismatchError) as error:
        split(*inputs)
    return str(error.value)


def test_refuses_replicas_that_bring_other_numbers_of_rows(four_ranks):
    for message in four_ranks.run(refusal):
        assert "compiled different graphs" in message
        assert "float32[6, 1, 2, 8] over each of ranks" in message
