"""SmolLM2-135M prefills by context parallel and decodes from that cache: the tokens are transformers' own."""

import pytest
import torch
import torch.distributed as dist

from oproj_pass.capture import ContextBatch
from oproj_pass.runtime import ContextParallelStep, PrefillRunner
from tests.support.real_weights import needs_real_weights, unpacked_once

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.model,
    pytest.mark.timeout(1300),
    needs_real_weights,
]

PROMPTS = (
    "The three primary colours are red, blue and yellow. Mixed in pairs they give",
    "Water boils at one hundred degrees Celsius, and it freezes at",
)
ROWS = ("input_ids", "positions", "slots")
NEW_TOKENS = 4


def answers(checkpoint):
    """Tokens by rows that are restored, and that are not; transformers' own; what the ranks agreed on."""
    model, prompts = loaded(checkpoint)
    tokens, agreed = generated(model, prompts, NEW_TOKENS)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ContextBatch, "restore_indices", lambda self, *_: tuple(range(self.num_tokens)))
        wrong, _ = generated(model, prompts, 1)
    expected = [plain(model, prompt) for prompt in prompts] if dist.get_rank() == 0 else None
    return tokens, wrong, expected, agreed


def generated(model, prompts, num_tokens):
    """A prefill of both prompts in one step, split over the ranks, and decode steps after it."""
    from tests.support.packed_transformers import ContextDecoder

    runner = PrefillRunner(
        ContextDecoder(model, max_num_seqs=2, max_model_len=40),
        sizes=[2, 32],
        rows=dict.fromkeys(ROWS, 0),
        whole=["positions", "slots"],
        context=dist.group.WORLD,
        timeout=60,
    )
    runner.warm_up(dict.fromkeys(ROWS, torch.zeros(1, dtype=torch.int64)))
    tokens, computed, agreed = [list(prompt) for prompt in prompts], [0, 0], []
    for _ in range(num_tokens):
        scheduled = [len(known) - done for known, done in zip(tokens, computed, strict=True)]
        requests = ContextParallelStep(2, scheduled, [len(prompt) for prompt in prompts], computed)
        logits = runner.step(packed(tokens, computed), requests)
        agreed.append(runner.last_step.agreement.num_tokens)
        computed = [len(known) for known in tokens]
        ends = torch.tensor(scheduled).cumsum(0) - 1
        for known, token in zip(tokens, logits[ends].argmax(-1).tolist(), strict=True):
            known.append(token)
    return tokens, agreed


def loaded(checkpoint):
    from oproj_pass.demo.checkpoint import load_checkpoint

    model, tokenizer = load_checkpoint(checkpoint)
    return model, [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]


def packed(tokens, computed):
    rows = [
        (known[position], position, slot)
        for slot, (known, done) in enumerate(zip(tokens, computed, strict=True), start=1)
        for position in range(done, len(known))
    ]
    return {name: torch.tensor(column) for name, column in zip(ROWS, zip(*rows, strict=True), strict=True)}


def plain(model, prompt):
    return model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt)),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
    )[0].tolist()


@pytest.fixture
def checkpoint(tmp_path_factory):
    return unpacked_once(tmp_path_factory)


def test_prefills_split_and_decodes_transformers_tokens(two_ranks, checkpoint):
    (tokens, wrong, expected, agreed), (peers, *_) = two_ranks.run(answers, checkpoint, timeout=600)
    assert tokens == peers == expected
    assert all(found[-1] != known[len(found) - 1] for found, known in zip(wrong, tokens, strict=True))
    assert agreed[0] < sum(len(known) for known in tokens) - 2 * NEW_TOKENS  # each rank ran a part of them
    assert agreed[1:] == [2] * (NEW_TOKENS - 1)  # decodes are whole on both
