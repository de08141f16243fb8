"""A tiny model with a tokenizer of its own, and two ways to run the demonstration that cannot hang."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from oproj_pass.demo.prompts import ARRIVALS
from oproj_pass.demo.request import Request
from tests.support.scripts import finished

SYSTEM_WORDS = 18  # prompts then last about as long as the real model's do
SPECIAL = ["<unk>", "<end>", "system"]


@dataclass(frozen=True)
class Run:
    """A finished run: `facts` is its JSON output, None if it printed none."""

    status: int
    facts: dict[str, Any] | None
    stderr: str


@pytest.fixture(scope="session")
def run_ranks(tiny_checkpoint):
    """Runs the demonstration on a pool of ranks, with the tiny model."""
    from tests.distributed.demo.ranks import demonstrated

    def run(pool, max_tokens: int = 32, *, wrong_slice: bool = False) -> Run:
        done = finished(pool.run(demonstrated, tiny_checkpoint, max_tokens, wrong_slice, init=False))
        return Run(done.status, json.loads(done.stdout) if done.stdout else None, done.stderr)

    return run


@pytest.fixture(scope="session")
def run_demo():
    """Runs the demonstration as users do, in a session of its own, which is killed whole when time is up."""

    def run(*arguments: str, timeout: float = 240) -> Run:
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "oproj_pass.demo", "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(f"still running after {timeout} s: {process.communicate()[1]}") from None
        return Run(process.returncode, json.loads(stdout) if stdout else None, stderr)

    return run


@pytest.fixture(scope="session")
def tiny_model():
    """Three layers of random weights, large enough that every token depends on the attention."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        eos_token_id=SPECIAL.index("<end>"),
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="session")
def tiny_checkpoint(tiny_model, tmp_path_factory):
    """The tiny model as a checkpoint folder, with a tokenizer of whole words."""
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    words = sorted({word for arrival in ARRIVALS for word in arrival.prompt.split()})
    named = [*SPECIAL, *words]
    filler = [f"word{number}" for number in range(tiny_model.config.vocab_size - len(named))]
    vocabulary = {word: number for number, word in enumerate(named + filler)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<end>")
    system = "system " * SYSTEM_WORDS
    wrapped.chat_template = (
        f"{system}{{% for message in messages %}}{{{{ message['content'] }}}}{{% endfor %}}"
    )
    wrapped.save_pretrained(folder)
    tiny_model.save_pretrained(folder)
    return folder


@pytest.fixture
def request_of():
    """Makes a request; by default one that arrives at once and is not urgent."""

    def make(request_id: str, prompt: list[int], max_tokens: int = 6, **fields: Any) -> Request:
        fields = {"arrival_step": 0, "urgent": False, **fields}
        return Request(
            request_id=request_id, prompt="", prompt_token_ids=prompt, max_tokens=max_tokens, **fields
        )

    return make
