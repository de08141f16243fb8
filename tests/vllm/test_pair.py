"""A prefill and a decode node on a CPU: the prompts' KV cache travels through a folder."""

import pytest

from tests.vllm.support.engine import COMPILED, build_engine, greedy
from tests.vllm.support.process import run_ranks
from tests.vllm.support.steps import graph_modes, recording

pytestmark = pytest.mark.timeout(900)  # several engines start, one after the other

PROMPTS = [[[5, 6, 7] * 13, [8, 9]], [[10] * 33]]  # by rank: less than a block of 32 tokens, and more
SPOILT = [[[40, 41, 42]], [[43] * 40]]
NEW = [[[50, 51, 52] * 4], [[53] * 9]]  # never seen by the prefill node


def connected(role, folder):
    return {
        "block_size": 32,
        "enable_prefix_caching": False,
        "kv_transfer_config": {
            "kv_connector": "WholePromptConnector",
            "kv_connector_module_path": "tests.vllm.support.pair",
            "kv_connector_extra_config": {"shared_storage_path": str(folder)},
            "kv_role": role,
        },
    }


def prefill(rank, model, folder):
    """Every rank's tokens, of one unsharded engine that leaves the prompts' KV cache in the folder."""
    llm = build_engine(model, **connected("kv_producer", folder))
    arriving = [greedy(llm, prompts) for prompts in PROMPTS]
    whole = set(folder.iterdir())
    spoilt = [greedy(llm, prompts) for prompts in SPOILT]
    fill_with_zeros(set(folder.iterdir()) - whole)
    return {"arriving": arriving, "spoilt": spoilt}


def decode(rank, model, folder):
    llm = build_engine(model, size=2, compilation=COMPILED, **connected("kv_consumer", folder))
    found = {}
    for name, prompts in {"arriving": PROMPTS, "spoilt": SPOILT, "new": NEW}.items():
        with recording(llm) as steps:
            tokens = greedy(llm, prompts[rank])
        found[name] = {"tokens": tokens, "first": list(steps[0].values()), "modes": graph_modes(llm, steps)}
    return found


def fill_with_zeros(folders):
    import torch
    from safetensors.torch import load_file, save_file

    assert len(folders) == sum(map(len, SPOILT))
    for file in (file for folder in folders for file in folder.iterdir()):
        save_file({name: torch.zeros_like(value) for name, value in load_file(file).items()}, file)


@pytest.fixture(scope="module")
def nodes(checkpoints, tmp_path_factory):
    """What the prefill node gave, and what each decode rank did with it."""
    model, folder = checkpoints["qwen3_moe"], tmp_path_factory.mktemp("kv")
    (prefilled,) = run_ranks(prefill, model, folder, world=1)
    return prefilled, run_ranks(decode, model, folder)


def test_the_sharded_decode_ranks_go_on_with_the_tokens_of_one_unsharded_engine(nodes):
    prefilled, ranks = nodes
    assert [found["arriving"]["tokens"] for found in ranks] == prefilled["arriving"]


def test_a_rank_reads_the_cache_that_it_was_sent(nodes):
    """Else equal tokens would prove nothing: from a cache of zeros follow others."""
    prefilled, ranks = nodes
    for found, expected in zip(ranks, prefilled["spoilt"], strict=True):
        assert found["spoilt"]["tokens"] != expected


def test_an_arrival_recomputes_one_token_and_its_step_has_a_graph(nodes):
    for found, prompts in zip(nodes[1], PROMPTS, strict=True):
        assert found["arriving"]["first"] == [1] * len(prompts)
        assert set(found["arriving"]["modes"]) == {"FULL"}


def test_a_prompt_that_was_not_prefilled_would_have_none(nodes):
    for found, prompts in zip(nodes[1], NEW, strict=True):
        assert found["new"]["first"] == [len(prompt) for prompt in prompts]
        assert found["new"]["modes"][0] == "NONE"
        assert set(found["new"]["modes"][1:]) == {"FULL"}
