"""Architectures of ``transformers``, sharded over real ranks, against themselves unsharded."""

import pytest
import torch

import oproj_pass

pytestmark = pytest.mark.distributed

SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "vocab_size": 50,
}
TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
GROUPED = {**SIZES, **TOKENS, "num_key_value_heads": 2}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}

# Name of the configuration class, its arguments, and how many projections it has.
FAMILIES = {
    "grouped heads": ("LlamaConfig", GROUPED, 1),
    "bias": ("Starcoder2Config", {**GROUPED, "use_bias": True}, 1),
    "addmm": ("GPT2Config", {"n_embd": 32, "n_head": 4, "n_layer": 1, "vocab_size": 50, **TOKENS}, 1),
    "transposed matmul, parallel residual": ("FalconConfig", {**SIZES, **TOKENS}, 1),
    "explicit attention": (
        "BloomConfig", {"hidden_size": 32, "n_head": 4, "n_layer": 1, "vocab_size": 50}, 1,
    ),
    "sinks, experts": (
        "GptOssConfig", {**GROUPED, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}, 1,
    ),
    "norm before": ("BitNetConfig", GROUPED, 1),
    "norm after": ("Gemma2Config", {**GROUPED, "head_dim": 8}, 1),
    "latent attention": (
        "DeepseekV3Config",
        {**SIZES, **TOKENS, **LATENT, "num_key_value_heads": 4, "first_k_dense_replace": 1,
         "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
        1,
    ),
    "gate, hybrid": (
        "Qwen3NextConfig",
        {**GROUPED, **EXPERTS, **LINEAR, "num_hidden_layers": 2, "head_dim": 8,
         "shared_expert_intermediate_size": 16, "layer_types": ["linear_attention", "full_attention"]},
        1,
    ),
}  # fmt: skip


def build(name):
    import transformers

    config, arguments, sites = FAMILIES[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, config)(**arguments))
    return model.eval().requires_grad_(False), sites


@torch.inference_mode()
def error_of(name):
    (model, sites), (reference, _) = build(name), build(name)
    tokens = torch.randint(3, 50, (2, 5))
    expected = reference(input_ids=tokens, use_cache=False).logits
    options = {"oproj_tensor_parallel_size": 2, "expected_sites": sites}
    compiled = torch.compile(model, backend="oproj_npu", options=options, fullgraph=True)
    logits = compiled(input_ids=tokens, use_cache=False).logits
    assert len(oproj_pass.shard_report(model).weights) == sites
    return ((logits - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("name", FAMILIES)
def test_equals_the_unsharded_architecture(two_ranks, name):
    assert max(two_ranks.run(error_of, name)) < 1e-5


@torch.inference_mode()
def decoded(steps):
    """Greedy tokens over a static cache that the graph writes in place: sharded, and unsharded."""
    import transformers

    (model, sites), (reference, _) = build("grouped heads"), build("grouped heads")
    options = {"oproj_tensor_parallel_size": 2, "expected_sites": sites}
    compiled = torch.compile(model, backend="oproj_npu", options=options, fullgraph=True, dynamic=False)
    first, results = torch.randint(3, 50, (2, 1)), []
    for step_model in (compiled, reference):
        cache = transformers.StaticCache(config=model.config, max_cache_len=16)
        tokens = [first]
        for position in range(steps):
            logits = step_model(
                input_ids=tokens[-1], past_key_values=cache, position_ids=torch.full((2, 1), position)
            ).logits
            tokens.append(logits[:, -1:].argmax(-1))
        results.append((torch.cat(tokens, 1), torch.stack([layer.keys for layer in cache.layers])))
    (sharded, sharded_keys), (plain, plain_keys) = results
    return (
        sharded.tolist(),
        plain.tolist(),
        (sharded_keys - plain_keys).abs().max().item(),
        plain_keys.abs().max().item(),
    )


@pytest.fixture(scope="module")
def decodings(two_ranks):
    return two_ranks.run(decoded, 5)


def test_keeps_writes_to_a_static_cache(decodings):
    for sharded, plain, difference, largest in decodings:
        assert sharded == plain
        assert difference < 1e-5
        assert largest > 1e-2  # the cache was written at all


def test_ranks_decode_their_own_tokens(decodings):
    (first, *_), (second, *_) = decodings
    assert first != second


@torch.inference_mode()
def generated_and_saved(folder):
    """Tokens of ``generate`` compiled in place, and unsharded; how far a saved copy is from the original."""
    import transformers

    (model, _), (reference, _) = build("grouped heads"), build("grouped heads")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        tokens = torch.randint(3, 50, (2, 4))
    arguments = {"max_new_tokens": 3, "do_sample": False, "use_cache": False, "pad_token_id": 0}
    expected = reference.generate(tokens, **arguments)
    model.compile(backend="oproj_npu", dynamic=True)
    made = model.generate(tokens, **arguments)
    state = oproj_pass.full_state_dict(model)
    if torch.distributed.get_rank() == 0:
        model.save_pretrained(folder, state_dict=state)
    torch.distributed.barrier()
    saved = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    freed = oproj_pass.shard_report(model).freed_nbytes
    plain = reference.state_dict()
    return made.tolist() == expected.tolist(), freed > 0, all(torch.equal(saved[n], plain[n]) for n in plain)


def test_generates_when_compiled_in_place_and_saves_the_full_model(two_ranks, tmp_path):
    assert two_ranks.run(generated_and_saved, str(tmp_path)) == [(True, True, True)] * 2
