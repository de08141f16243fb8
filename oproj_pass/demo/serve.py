"""The serving loop of one rank, in lockstep with all others until nobody has anything left to do."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from oproj_pass.demo.facts import Refusal
from oproj_pass.demo.request import Request
from oproj_pass.demo.scheduler import Scheduler
from oproj_pass.demo.slots import NULL_SLOT
from oproj_pass.errors import EagerStepError
from oproj_pass.runtime import DecodeRunner

OVERSIZE_STEP = 20
"""The step before which rank 0 tries one that no captured size fits."""


@dataclass
class Served:
    """How serving went on this rank.

    Attributes:
        loads: tokens that it brought to each step.
        sizes: the captured size that its group replayed at each step.
        refusal: the error of the oversize step, None for a group that had none.
    """

    loads: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    refusal: Refusal | None = None


class Work(NamedTuple):
    """What all ranks have to do: tokens left together at most, and the tokens each brings to this step."""

    num_tokens_left: int
    loads: tuple[int, ...]


def serve(scheduler: Scheduler, runner: DecodeRunner, advance: Callable[[Work], None]) -> Served:
    """Answer all requests; `advance` is told of all ranks' work before each step."""
    served = Served()
    for step in count():
        running = scheduler.schedule(step)
        work = work_everywhere(scheduler)
        advance(work)
        if not work.num_tokens_left:
            break
        if step == OVERSIZE_STEP:
            served.refusal = try_oversize_step(runner)
        if running:
            logits = runner.step(step_inputs(running))
            scheduler.update(logits.argmax(-1).tolist())
        else:
            runner.idle_step({})
        served.loads.append(len(running))
        served.sizes.append(replayed_size(runner))
    return served


def step_inputs(running: list[Request]) -> dict[str, Tensor]:
    """A step's inputs for `SlotDecoder`, [T] each."""
    return {
        "input_ids": torch.tensor([request.next_token_id for request in running]),
        "positions": torch.tensor([request.num_computed_tokens for request in running]),
        "slots": torch.tensor([request.slot for request in running]),
    }


def empty_rows(num_tokens: int) -> dict[str, Tensor]:
    """Inputs of tokens that belong to no request."""
    zeros = torch.zeros(num_tokens, dtype=torch.int64)
    return {"input_ids": zeros, "positions": zeros, "slots": torch.full((num_tokens,), NULL_SLOT)}


def try_oversize_step(runner: DecodeRunner) -> Refusal | None:
    """Let rank 0 bring one token too many; how this rank was refused, None if it was not."""
    num_tokens = runner.plan.max_size + 1 if dist.get_rank() == 0 else 0
    try:
        if num_tokens:
            runner.step(empty_rows(num_tokens))
        else:
            runner.idle_step({})
    except EagerStepError as error:
        return Refusal(num_tokens, type(error).__name__, str(error))
    return None


def work_everywhere(scheduler: Scheduler) -> Work:
    """The work of all ranks, so that one without any stays as long as its peers need it."""
    mine = torch.tensor([scheduler.num_tokens_left, len(scheduler.running)])
    everyone = mine.new_empty(dist.get_world_size(), 2)
    dist.all_gather_single(everyone.view(-1), mine)
    left, loads = everyone.T.tolist()
    return Work(sum(left), tuple(loads))


def replayed_size(runner: DecodeRunner) -> int:
    """The captured size of the step that the runner has just replayed."""
    assert runner.last_step is not None
    size = runner.plan.dispatch(runner.last_step.agreement.num_tokens)
    assert size is not None
    return size
