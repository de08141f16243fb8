"""What one rank found out, gathered on rank 0: the material of the report, and of ``--json``."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from oproj_pass.capture import CapturePlan
from oproj_pass.demo.request import Request


@dataclass(frozen=True)
class Answer:
    """One request's end, beside the unsharded model's answer to the same prompt."""

    request_id: str
    prompt: str
    text: str
    arrival_step: int
    urgent: bool
    num_preemptions: int
    finish_reason: Literal["stop", "length", "abort"]
    error: str | None
    token_ids: list[int]
    reference_token_ids: list[int]

    @property
    def expected_token_ids(self) -> list[int]:
        """What the answer has to be: the unsharded model's, of an aborted one as much as it got."""
        if self.finish_reason == "abort":
            return self.reference_token_ids[: len(self.token_ids)]
        return self.reference_token_ids

    @property
    def equal(self) -> bool:
        """Whether every token is the unsharded model's."""
        return self.token_ids == self.expected_token_ids

    @property
    def num_equal(self) -> int:
        """Tokens before the first difference."""
        pairs = list(zip(self.token_ids, self.expected_token_ids, strict=False))
        return next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), len(pairs))


@dataclass(frozen=True)
class Refusal:
    """The error that a rank raised for a step above every captured size."""

    num_tokens: int
    error: str
    message: str


@dataclass(frozen=True)
class RankFacts:
    """Everything one rank reports.

    Attributes:
        weights: paths of the sharded weights.
        freed_nbytes_by_role: a weight of two roles is under both, joined by "+".
        loads: tokens that the rank brought to each step.
        sizes: the captured size that its group replayed at each step.
        refusal: the error of the oversize step, None for a rank whose group had none.
    """

    rank: int
    weights: tuple[str, ...]
    full_nbytes: int
    kept_nbytes: int
    freed_nbytes: int
    freed_nbytes_by_role: dict[str, int]
    loads: list[int]
    sizes: list[int]
    answers: list[Answer]
    refusal: Refusal | None


@dataclass(frozen=True)
class DemoFacts:
    """The whole run; ``tensor_parallel_size`` is the size of every role."""

    model: str
    num_layers: int
    tensor_parallel_size: int
    plan: CapturePlan
    ranks: list[RankFacts]

    @property
    def answers(self) -> list[Answer]:
        """The answers of all ranks."""
        return [answer for rank in self.ranks for answer in rank.answers]

    @property
    def tokens_equal(self) -> bool:
        """Whether every token of every rank is the unsharded model's."""
        return all(answer.equal for answer in self.answers)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        facts = asdict(self)
        facts["plan"] = self.plan.to_dict()
        facts["tokens_equal"] = self.tokens_equal
        for rank, facts_of_rank in zip(self.ranks, facts["ranks"], strict=True):
            for answer, facts_of_answer in zip(rank.answers, facts_of_rank["answers"], strict=True):
                facts_of_answer["equal"] = answer.equal
        return facts


def answer_to(request: Request, text: str, reference_token_ids: list[int]) -> Answer:
    """A finished request as an answer."""
    assert request.finish_reason is not None
    return Answer(
        request_id=request.request_id,
        prompt=request.prompt,
        text=text,
        arrival_step=request.arrival_step,
        urgent=request.urgent,
        num_preemptions=request.num_preemptions,
        finish_reason=request.finish_reason,
        error=request.error,
        token_ids=request.output_token_ids,
        reference_token_ids=reference_token_ids,
    )
