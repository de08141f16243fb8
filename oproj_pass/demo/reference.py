"""The unsharded model's answers, by transformers' own greedy generation."""

import torch
from transformers import PreTrainedModel

from oproj_pass.demo.request import Request


def reference_answer(model: PreTrainedModel, request: Request) -> list[int]:
    """The tokens that the model, as it is, answers a request with; no slots, padding or graph involved."""
    prompt = torch.tensor([request.prompt_token_ids])
    output = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=request.max_tokens,
    )
    return output[0, prompt.shape[1] :].tolist()  # type: ignore[no-any-return]
