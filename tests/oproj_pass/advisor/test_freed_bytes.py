"""The bytes that are promised are the bytes that sharding frees, on twenty architectures, to the byte."""

import pytest
import torch

import oproj_pass
from oproj_pass.advisor.memory import memory_of
from oproj_pass.advisor.sites import sites_of
from oproj_pass.advisor.workload import EXCHANGES
from tests.support.fake import fake_world

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 48,
    "vocab_size": 52, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GQA = SIZES | {"num_key_value_heads": 2, "head_dim": 16}
GPT = {"n_embd": 32, "n_head": 4, "n_layer": 1, "vocab_size": 52, "bos_token_id": 1, "eos_token_id": 2}
MLA = SIZES | {
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 12, "first_k_dense_replace": 1,
}  # fmt: skip
ARCHITECTURES = {
    "LlamaConfig": GQA,
    "GPT2Config": GPT,
    "GPTJConfig": GPT | {"rotary_dim": 4},
    "GPTNeoXConfig": SIZES,
    "PhiConfig": SIZES,
    "FalconConfig": SIZES,
    "BloomConfig": {"hidden_size": 32, "n_head": 4, "n_layer": 1, "vocab_size": 52},
    "CohereConfig": GQA,
    "Gemma2Config": GQA,
    "DeepseekV3Config": MLA,
    "MistralConfig": GQA,
    "Qwen2Config": GQA,
    "Qwen3Config": GQA,
    "GemmaConfig": GQA,
    "Olmo2Config": GQA,
    "Starcoder2Config": GQA,
    "StableLmConfig": SIZES | {"num_key_value_heads": 2},
    "GraniteConfig": GQA,
    "Phi3Config": GQA,
    "OPTConfig": SIZES | {"ffn_dim": 48, "word_embed_proj_dim": 32, "do_layer_norm_before": True},
}
RANKS = 4
ROLES = {"oproj", "mlp", "lmhead", "embedding"}


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_what_is_promised_is_what_is_freed(kind):
    torch._dynamo.reset()
    config = getattr(transformers, kind)(**ARCHITECTURES[kind])
    model = transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    step = {"input_ids": torch.zeros(2, 1, dtype=torch.int64), "use_cache": False}
    sites = sites_of(oproj_pass.explain(model, **step).projections)
    promised = memory_of(sites, EXCHANGES["oproj"][0], size=RANKS, tokens=2, communicator_nbytes=0)
    options = {f"{role}_tensor_parallel_size": RANKS for role in ROLES} | {"inner_backend": "eager"}
    with fake_world(RANKS), torch.no_grad():
        torch.compile(model, backend="oproj_npu", options=options)(**step)
    report = oproj_pass.shard_report(model)
    freed = report.by_role["oproj"]
    assert len(freed.weights) == len(sites) == 1
    assert promised.saved_nbytes == freed.freed_nbytes > 0
    assert promised.full_nbytes == freed.full_nbytes
    assert {role for roles in report.by_role for role in roles.split("+")} == ROLES
    assert RANKS * report.freed_nbytes == (RANKS - 1) * report.full_nbytes
