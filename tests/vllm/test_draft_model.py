"""Drafts of a second model, whole on every rank: the tokens stay, and ranks without requests run it too."""

import shutil
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.vllm.support.engine import (
    COMPILED,
    build_engine,
    greedy,
    output_projections,
    take_the_slices_of,
)
from tests.vllm.support.process import run_ranks
from tests.vllm.support.steps import graph_modes, recording

pytestmark = pytest.mark.timeout(900)  # several engines start, one after the other

DRAFTS = 3
PROMPTS = {  # by situation and rank
    "uneven": [[[5, 6, 7, 8], [9, 10]], [[11, 12, 13]]],
    "idle": [[], [[12, 13], [14]]],
}
NUM_ANSWERS = 24
DISTURBANCE = 0.02  # of weights of 0.15: some drafts are accepted, some are not


def decode_alone(rank, model):
    """By situation every rank's tokens, of one unsharded engine that does not speculate."""
    llm = build_engine(model)
    return {
        name: [greedy(llm, prompts, NUM_ANSWERS) if prompts else [] for prompts in by_rank]
        for name, by_rank in PROMPTS.items()
    }


def speculate(rank, model, draft):
    """By situation tokens, steps and runs of the draft model; then with the neighbour's slices."""
    speculation = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": DRAFTS}
    llm = build_engine(model, size=2, compilation=COMPILED, speculative_config=speculation)
    drafter = llm.llm_engine.model_executor.driver_worker.worker.model_runner.drafter
    found = {name: _served(llm, drafter, by_rank[rank]) for name, by_rank in PROMPTS.items()}
    found["weights"] = output_projections(llm)
    found["draft"] = [
        (type(weight).__name__, weight.untyped_storage().nbytes() == weight.numel() * 4)
        for name, weight in drafter.model.named_parameters()
        if name.endswith("o_proj.weight")
    ]
    take_the_slices_of(1 - rank, llm)
    return found | {"wrong": greedy(llm, PROMPTS["uneven"][rank], NUM_ANSWERS)}


def _served(llm, drafter, prompts):
    proposing = patch.object(drafter, "propose", wraps=drafter.propose)
    joining = patch.object(drafter, "dummy_run", wraps=drafter.dummy_run)
    with recording(llm) as steps, proposing as proposed, joining as joined:
        tokens = greedy(llm, prompts, NUM_ANSWERS)
    decodes = [step for step in steps[1:] if step]  # the first one holds the prompts
    return {
        "tokens": tokens,
        "steps": [list(step.values()) for step in decodes],
        "modes": graph_modes(llm, decodes),
        "proposed": proposed.call_count,
        "joined": joined.call_count,
    }


def _disturbed(model, folder):
    """A checkpoint close to ``model``: its weights with noise."""
    shutil.copytree(model, folder)
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: weight + DISTURBANCE * torch.randn(weight.shape, generator=generator)
        for name, weight in load_file(model / "model.safetensors").items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def alone(checkpoints):
    (tokens,) = run_ranks(decode_alone, checkpoints["qwen3_moe"], world=1)
    return tokens


@pytest.fixture(scope="module")
def speculating(checkpoints, tmp_path_factory):
    model = checkpoints["qwen3_moe"]
    return run_ranks(speculate, model, _disturbed(model, tmp_path_factory.mktemp("draft") / "model"))


@pytest.mark.parametrize("situation", PROMPTS)
def test_drafts_of_a_model_change_no_token_on_ranks_that_share_projections(alone, speculating, situation):
    assert [found[situation]["tokens"] for found in speculating] == alone[situation]


def test_some_drafts_are_accepted_and_some_are_not(speculating):
    """Else equal tokens would prove nothing."""
    most, fewest = NUM_ANSWERS - 1, -(-(NUM_ANSWERS - 1) // (1 + DRAFTS))
    assert all(fewest < len(found["uneven"]["steps"]) < most for found in speculating)


def test_a_rank_without_requests_runs_the_draft_model_with_its_peers(speculating):
    idle, busy = (found["idle"] for found in speculating)
    assert not idle["steps"]
    assert not idle["proposed"]
    assert idle["joined"] >= busy["proposed"] > 0


def test_vllm_has_a_graph_for_every_step_since_a_model_always_drafts_as_many(speculating):
    for found in speculating:
        for situation in PROMPTS:
            assert set(found[situation]["modes"]) <= {"FULL"}


def test_the_models_projections_are_shared_and_the_drafts_are_whole(speculating):
    for found in speculating:
        assert len(found["weights"]) == len(found["draft"]) == 2
        for kind, shape, stored, shard in found["weights"].values():
            assert (kind, stored, shard) == ("ReleasedParameter", 0, shape[0] * shape[1] * 4 // 2)
        assert set(found["draft"]) == {("ModelWeightParameter", True)}


def test_ranks_with_their_neighbours_slices_have_other_tokens(alone, speculating):
    assert [found["wrong"] for found in speculating] != alone["uneven"]
