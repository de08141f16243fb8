"""DeepSeek-V4's output projection, in two steps, over real ranks, against itself unsharded."""

from unittest.mock import patch

import pytest
import torch
from safetensors.torch import save_file

import oproj_pass
from oproj_pass.weights.placement import Placement
from tests.support.grouped import GroupedAttention, heads_of

pytestmark = pytest.mark.distributed

LAYERS = 2
ATTENTIONS = [f"model.layers.{layer}.self_attn" for layer in range(LAYERS)]
PATHS = {f"{attention}.{name}.weight" for attention in ATTENTIONS for name in ("o_a_proj", "o_b_proj")}


def model():
    import transformers

    config = transformers.DeepseekV4Config(
        hidden_size=32, num_attention_heads=8, head_dim=8, o_groups=4, o_lora_rank=8, q_lora_rank=16,
        qk_rope_head_dim=4, num_hidden_layers=LAYERS, layer_types=["sliding_attention"] * LAYERS,
        vocab_size=50, moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2,
        num_hash_layers=0, index_n_heads=2, index_head_dim=8,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = transformers.AutoModelForCausalLM.from_config(config)
    return found.eval().requires_grad_(False)


def options(size):
    return {"oproj_tensor_parallel_size": size, "expected_sites": LAYERS}


def tokens():
    return torch.randint(3, 50, (2, 3))


def logits(step, ids):
    return step(input_ids=ids, use_cache=False).logits


def error_of(sharded, reference):
    ids = tokens()
    expected = logits(reference, ids)
    return ((logits(sharded, ids) - expected).abs().max() / expected.abs().max()).item()


@torch.inference_mode()
def facts(size):
    """The error, what is sharded and freed, and whether the whole weights come back."""
    sharded, reference = model(), model()
    step = torch.compile(sharded, backend="oproj_npu", options=options(size), fullgraph=True)
    error = error_of(step, reference)
    report = oproj_pass.shard_report(sharded)
    whole = oproj_pass.full_state_dict(sharded)
    same = all(torch.equal(whole[name], value) for name, value in reference.state_dict().items())
    return error, {weight.path for weight in report.weights}, report.freed_nbytes, same


def check(found, size):
    weights = model().state_dict()
    for error, paths, freed, same in found:
        assert error < 1e-5
        assert paths == PATHS
        assert freed == sum(weights[path].nbytes for path in PATHS) * (size - 1) // size
        assert same


def test_two_ranks_share_both_weights_and_keep_the_result(two_ranks):
    check(two_ranks.run(facts, 2), 2)


def test_four_ranks_hold_a_group_each(four_ranks):
    check(four_ranks.run(facts, 4), 4)


def next_ranks_part(placement, full):
    group = placement.group
    rank = group.rank + 1 if full.shape[0] == 32 and full.shape[1] == 32 else group.rank
    return placement.only_split.part_of(full, rank % group.size, group.size)


def sabotaged(size):
    with patch.object(Placement, "part_of", next_ranks_part):
        return facts(size)[0]


def test_parity_fails_when_a_rank_takes_the_columns_of_other_groups(two_ranks):
    """The negative control."""
    assert min(two_ranks.run(sabotaged, 2)) > 1e-3


@torch.inference_mode()
def loaded(folder):
    with torch.device("meta"):
        sharded = GroupedAttention()
    config, x = {"oproj_tensor_parallel_size": 2}, heads_of(2, 3)
    report = oproj_pass.load_sharded(sharded, folder, config, example_args=(x,))
    step = torch.compile(sharded, backend="oproj_npu", options=config, fullgraph=True)
    return (step(x) - GroupedAttention()(x)).abs().max().item(), {weight.path for weight in report.weights}


def test_loads_a_ranks_groups_alone(two_ranks, tmp_path):
    save_file(GroupedAttention().state_dict(), tmp_path / "model.safetensors")
    for error, paths in two_ranks.run(loaded, str(tmp_path)):
        assert error < 1e-5
        assert paths == {"wo_a.weight", "wo_b.weight"}


def test_explains_what_both_weights_save_and_send():
    row, _ = oproj_pass.explain(model(), input_ids=tokens(), use_cache=False).projections
    assert row.strategy == "group"
    assert row.nbytes == 4 * (32 * 16 + 32 * 32)
    assert [row.fits(size) for size in (2, 3, 4, 8)] == [True, False, True, False]
    assert row.sent_nbytes(2) == 4 * (64 // 2 + 32)
