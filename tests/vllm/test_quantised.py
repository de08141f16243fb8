"""Decoding with quantised output projections, float8 and int8, each layer in a scheme of its own."""

import pytest

from examples.tiny_checkpoint import write_checkpoint
from tests.vllm.support.engine import (
    COMPILED,
    build_engine,
    greedy,
    output_projections,
    take_the_slices_of,
)
from tests.vllm.support.process import run_ranks
from tests.vllm.support.quantised import GROUPS, quantise_output_projections, use

pytestmark = pytest.mark.timeout(900)  # several engines start, one after the other

PROMPTS = [[[5, 6, 7, 8], [9, 14, 21] * 8, [300, 40]], [[10, 11], [477]]]  # by rank
LAYERS = [f"layers.{layer}." for layer in range(len(GROUPS))]
NAMES = [
    "{type} {strategy} of {0} inputs".format(group["input_activations"]["strategy"], **group["weights"])
    for group in GROUPS
]


def decode_alone(rank, model):
    """Every rank's tokens, of one unsharded engine; its weights."""
    use()
    llm = build_engine(model)
    return [greedy(llm, prompts) for prompts in PROMPTS], output_projections(llm)


def decode(rank, model):
    """This rank's tokens and weights, and by layer its tokens with its neighbour's slice of that layer."""
    use()
    llm = build_engine(model, size=2, compilation=COMPILED)
    found = {"tokens": greedy(llm, PROMPTS[rank]), "projections": output_projections(llm), "wrong": {}}
    for layer in LAYERS:
        take_the_slices_of(1 - rank, llm, layer)
        found["wrong"][layer] = greedy(llm, PROMPTS[rank])
        take_the_slices_of(1 - rank, llm, layer)
    return found | {"tokens afterwards": greedy(llm, PROMPTS[rank])}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantised")
    return quantise_output_projections(
        write_checkpoint(folder, "qwen3_moe", num_hidden_layers=len(GROUPS)), GROUPS
    )


@pytest.fixture(scope="module")
def alone(checkpoint):
    (found,) = run_ranks(decode_alone, checkpoint, world=1)
    return found


@pytest.fixture(scope="module")
def sharded(checkpoint):
    return run_ranks(decode, checkpoint)


def test_sharded_tokens_are_those_of_one_unsharded_engine(alone, sharded):
    tokens, _ = alone
    assert [found["tokens"] for found in sharded] == tokens
    assert [found["tokens afterwards"] for found in sharded] == tokens


@pytest.mark.parametrize("layer", LAYERS, ids=NAMES)
def test_a_rank_that_computes_with_its_neighbours_slice_of_a_layer_has_other_tokens(alone, sharded, layer):
    tokens, _ = alone
    assert [found["wrong"][layer] for found in sharded] != tokens


def test_a_rank_holds_its_half_of_each_quantised_projection_and_nothing_of_the_full_one(alone, sharded):
    _, full = alone
    assert len(full) == len(GROUPS)
    for found in sharded:
        assert found["projections"].keys() == full.keys()
        for name, (kind, shape, stored, shard) in found["projections"].items():
            one_byte_each = shape[0] * shape[1]
            assert full[name][1:] == (shape, one_byte_each, None)
            assert (kind, stored, shard) == ("ReleasedParameter", 0, one_byte_each // 2)
