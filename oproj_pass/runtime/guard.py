"""Refuses a step that no captured graph serves. Called after dispatch, first thing before the step runs.

After dispatch, because an oversize batch leaves by the eager path before any check that runs earlier. Decides
from the agreed record alone, so all ranks of a group refuse the same step with the same message.
"""

from oproj_pass.capture import CapturePlan, GraphMode
from oproj_pass.errors import EagerStepError
from oproj_pass.runtime.agree import AgreedStep

_WHY = (
    "All ranks of a group must bring the same number of rows to a sharded output projection, and only a "
    "replayed graph guarantees it, so every rank refuses the step."
)


def replays(step: AgreedStep, size: int | None) -> bool:
    """Whether the group replays the graph of the captured ``size``."""
    return size is not None and step.agreement.mode is not GraphMode.NONE


def gathers(step: AgreedStep, size: int | None) -> bool:
    """Whether the group runs the step unsharded: no graph serves it, and every rank is ready to."""
    return not replays(step, size) and all(row.gathers for row in step.rows)


def refusal(step: AgreedStep, plan: CapturePlan, cannot_gather: str | None = None) -> EagerStepError:
    """The error that every rank raises for a step which is neither replayed nor gathered.

    Its message names each rank that cannot replay and why: its reason, or its tokens and the largest size.
    ``cannot_gather``: why the group does not run it unsharded, where it was asked to.
    """
    unasked = "" if cannot_gather is None else f" It cannot be gathered for either: {cannot_gather}."
    return EagerStepError(f"step would run eager: {_causes(step, plan)} {_WHY}{unasked}")


def reason_of_refusal(step: AgreedStep) -> str:
    """Why a step is refused, in a word: as it is counted."""
    return "cannot_replay" if step.agreement.mode is GraphMode.NONE else "oversize"


def _causes(step: AgreedStep, plan: CapturePlan) -> str:
    brought = list(zip(step.ranks, step.rows, strict=True))
    if step.agreement.mode is GraphMode.NONE:
        refusing = [(rank, row) for rank, row in brought if row.mode is GraphMode.NONE]
        return " ".join(f"rank {rank} cannot replay: {row.reason}." for rank, row in refusing)
    oversize = [(rank, row) for rank, row in brought if row.num_tokens > plan.max_size]
    counts = ", ".join(f"rank {rank} brings {row.num_tokens} tokens" for rank, row in oversize)
    return f"{counts}, the largest captured size is {plan.max_size}. {_remedy(plan)}"


def _remedy(plan: CapturePlan) -> str:
    if plan.warning is not None:
        return f"The plan does not cover: {plan.warning}."
    bound = plan.bound
    return (
        f"The plan covers max_num_seqs = {bound.max_num_seqs} requests of {bound.decode_query_len} token(s) "
        "each. Keep the scheduler within that, and prefill on prefill nodes."
    )
