"""A split prefill computes what the whole one does, on every rank; sabotaged, it does not."""

from functools import partial

import pytest
import torch

from tests.support.prefill import (
    Splitting,
    differences,
    exported,
    first_chunk_everywhere,
    prefill,
    tokens,
)

aten = torch.ops.aten
KINDS = {
    "causal": {},
    "masked": {"kind": "masked"},
    "window": {"kind": "masked", "window": 4},
    "sinks": {"kind": "sinks", "window": 4},
    "mla": {"kind": "mla"},
}


def over_lengths(lengths):
    """Per length the largest difference of a compiled model; how many graphs were compiled; near misses."""
    model, backend, errors = prefill(), Splitting(), {}
    split = torch.compile(model, backend=backend, fullgraph=True)
    with torch.inference_mode():
        for length in lengths:
            ids, starts = tokens(length), torch.zeros(1, dtype=torch.int64)
            if length > 1:
                torch._dynamo.mark_dynamic(ids, 1)
            errors[length] = differences(split(ids, starts), model(ids, starts))
    return errors, [[miss.reason for miss in record.near_misses] for record in backend.records]


def test_serves_lengths_from_1_to_64(two_ranks):
    """One graph for all but one token, which is a decode."""
    lengths = [7, *range(2, 65), 1]
    for errors, misses in two_ranks.run(over_lengths, lengths, timeout=300):
        assert max(errors.values()) < 1e-5, errors
        above_one, (reason,) = misses
        assert above_one == []
        assert "a decode, which every rank runs whole" in reason


def exported_difference(options, length, batch=1, **how):
    """The largest difference of an exported graph with static sizes."""
    ids, starts = tokens(length, batch), torch.arange(batch)
    whole = prefill(**options)(ids, starts)
    return differences(exported(options, ids, starts, **how)(ids, starts), whole)


def all_kinds(length, batch=1, kinds=KINDS, **how):
    return {kind: exported_difference(KINDS[kind], length, batch, **how) for kind in kinds}


@pytest.mark.parametrize(("length", "batch"), [(7, 1), (4, 2)])
def test_computes_what_one_rank_does_for_every_attention(two_ranks, length, batch):
    """Four rows are as many as heads: rows are followed by their dimension."""
    for found in two_ranks.run(all_kinds, length, batch):
        assert max(found.values()) < 1e-5, found


def decomposed():
    return all_kinds(7, kinds=["causal", "sinks"], decompose=True)


def test_computes_what_one_rank_does_on_a_decomposed_graph(two_ranks):
    """Products of merged rows, and an attention operator that takes what is added to its scores."""
    for found in two_ranks.run(decomposed):
        assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize(("length", "kinds"), [(3, ["causal"]), (13, ["sinks", "mla"])])
def test_four_ranks_compute_what_one_does(four_ranks, length, kinds):
    for found in four_ranks.run(all_kinds, length, 1, kinds):
        assert max(found.values()) < 1e-5, found


def chunks(kind):
    """Two chunks of a prompt, the second over the cache that the first left: logits and slots."""
    ids, options = tokens(12), {"kind": kind}
    model = prefill(**options)
    whole_logits, whole_cache = model(ids, torch.tensor([0]))
    first, second = (ids[:, :7], torch.tensor([0])), (ids[:, 7:], torch.tensor([7]))
    logits, cache = exported(options, *first)(*first)
    later, full_cache = exported(options, *second, cache)(*second, cache)
    return differences((torch.cat((logits, later), 1), full_cache), (whole_logits, whole_cache))


@pytest.mark.parametrize("kind", ["masked", "sinks"])
def test_a_prompt_in_chunks_leaves_the_whole_prompts_cache(two_ranks, kind):
    assert max(two_ranks.run(chunks, kind)) < 1e-5


def order_not_restored(gm, rank):
    (order,) = gm.graph.find_nodes(op="call_function", target=torch.ops.oproj_pass.context_order.default)
    with gm.graph.inserting_before(order):
        order.replace_all_uses_with(gm.graph.call_function(aten.arange.default, (order.args[1],)))


def masked_by_index(gm, rank):
    for mask in gm.graph.find_nodes(op="call_function", target=aten.le.Tensor):
        if mask.args[1].target is aten.unsqueeze.default:
            with gm.graph.inserting_before(mask):
                rows = gm.graph.call_function(aten.argsort.default, (mask.args[1], 0))
            mask.replace_input_with(mask.args[1], rows)


@pytest.mark.parametrize("edit", [order_not_restored, masked_by_index, first_chunk_everywhere])
def test_differs_when_sabotaged(two_ranks, edit):
    assert max(two_ranks.run(partial(exported_difference, {}, 7, edit=edit))) > 1e-2
