"""The example's real model, quantised to W8A8, decodes by slices what it decodes whole."""

import pytest
import torch
import torch.distributed as dist

import oproj_pass
from oproj_pass.weights.released import Released
from tests.support.real_weights import needs_real_weights, unpacked_once

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.model,
    pytest.mark.timeout(900),
    needs_real_weights,
]
NUM_TOKENS = 12


def decoded(checkpoint, folder):
    """This rank's tokens with whole weights, with its slices, and with its peer's slices; and the report."""
    from examples.w8a8 import PROMPTS, decode, decoder_for, empty_model, quantised

    whole, tokenizer = quantised(checkpoint)
    turn = dist.get_rank()  # so that each row of an exchange differs between the ranks
    prompts = [tokenizer(prompt).input_ids for prompt in PROMPTS[turn:] + PROMPTS[:turn]]
    with torch.compiler.set_stance("force_eager"):
        expected = decode(decoder_for(whole, prompts, NUM_TOKENS), prompts, NUM_TOKENS)
    model = empty_model(folder)
    report = oproj_pass.load_sharded(model, folder)
    step = decoder_for(model, prompts, NUM_TOKENS)
    tokens = decode(step, prompts, NUM_TOKENS)
    swap_slices(model)
    return expected, tokens, decode(step, prompts, 8), report.to_dict()


def swap_slices(model):
    for weight in model.parameters():
        if isinstance(weight, Released):
            slices = [torch.empty_like(weight.shard.tensor) for _ in range(2)]
            dist.all_gather(slices, weight.shard.tensor)
            weight.shard.tensor.copy_(slices[1 - dist.get_rank()])


@pytest.fixture(scope="module")
def facts(two_ranks, tmp_path_factory):
    from examples.w8a8 import quantise

    checkpoint, folder = unpacked_once(tmp_path_factory), tmp_path_factory.mktemp("w8a8")
    quantise(checkpoint, folder)
    return two_ranks.run(decoded, checkpoint, folder, timeout=600)


def test_gives_the_same_tokens_sharded_and_whole(facts):
    for expected, tokens, _, _ in facts:
        assert [len(answer) for answer in tokens] == [NUM_TOKENS] * 5
        assert tokens == expected


def test_gives_other_tokens_with_the_slices_of_the_other_rank(facts):
    """The control of the test above."""
    for expected, _, swapped, _ in facts:
        assert all(answer != right[:8] for answer, right in zip(swapped, expected, strict=True))


def test_holds_half_of_every_projection(facts):
    for *_, report in facts:
        assert len(report["weights"]) == 30
        assert report["kept_nbytes"] * 2 == report["full_nbytes"]
