"""The bytes that were published for one deployment, from the configuration of its model.

DeepSeek-R1 in W8A8 over groups of 8: o_proj 5.8 GB, LM head and embedding 1.51 each, MLP 0.9, in all 9.72.
They are GiB, cut and not rounded to the digits shown. The MLP's are those of the three dense layers: the
shared experts of the other 58, which are sites too, would add 2.0.
"""

import math

import pytest
import torch

from tests.passes.conftest import find_all, search_dynamo

transformers = pytest.importorskip("transformers")

LAYERS, DENSE, SIZE = 61, 3, 8
R1 = {
    "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "vocab_size": 129280,
    "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_shared_experts": 1,
}  # fmt: skip
ONE_LAYER_OF_EACH_KIND = {"num_hidden_layers": 2, "first_k_dense_replace": 1}
FEW_EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}


@pytest.fixture(scope="module")
def full():
    """Bytes of each site at two bytes a weight."""
    config = transformers.DeepseekV3Config(**R1 | ONE_LAYER_OF_EACH_KIND | FEW_EXPERTS)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        ids = torch.zeros(1, 2, dtype=torch.int64)
    found = search_dynamo(model, find=find_all, run=False, input_ids=ids, use_cache=False)
    return {site.path: site.nbytes for site in found.sites}


def saved(nbytes, digits):
    """GiB freed on a rank, cut to so many digits."""
    gib = nbytes * (1 - 1 / SIZE) / 2**30
    return math.floor(gib * 10**digits) / 10**digits


def test_reproduces_the_published_savings(full):
    attention = LAYERS * full["model.layers.0.self_attn.o_proj"] / 2  # W8A8: one byte a weight
    dense = DENSE * full["model.layers.0.mlp"] / 2
    head, table = full["lm_head"], full["model.embed_tokens"]  # not quantised
    published = [saved(attention, 1), saved(head, 2), saved(table, 2), saved(dense, 1)]
    assert published == [5.8, 1.51, 1.51, 0.9]
    assert round(sum(published), 2) == 9.72


def test_shared_experts_would_save_more_than_was_published(full):
    shared = (LAYERS - DENSE) * full["model.layers.1.mlp.shared_experts"] / 2
    assert saved(shared, 1) == 2.0
