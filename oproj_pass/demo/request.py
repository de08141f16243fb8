"""One request: its prompt, what has been computed of it, and how it ended."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class Request:
    """A prompt being answered, in vLLM's field names.

    Attributes:
        request_id: unique among all ranks.
        arrival_step: the step from which it may be scheduled.
        urgent: may take the slot of a request that is not.
        num_computed_tokens: tokens whose keys and values are in the cache; the position of the next one.
        slot: its slot of the cache while it runs.
        num_preemptions: how often it was offloaded and brought back.
        finish_reason: why it ended; None before.
        error: what its client is told if it was aborted.
    """

    request_id: str
    prompt: str
    prompt_token_ids: list[int]
    max_tokens: int
    arrival_step: int
    urgent: bool
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    slot: int | None = None
    num_preemptions: int = 0
    finish_reason: Literal["stop", "length", "abort"] | None = None
    error: str | None = None

    @property
    def next_token_id(self) -> int:
        """The token to compute next: of the prompt, then the last one sampled."""
        return (self.prompt_token_ids + self.output_token_ids)[self.num_computed_tokens]

    @property
    def num_tokens_left(self) -> int:
        """Tokens still to compute, at most: an end-of-sequence token may come sooner."""
        if self.finish_reason is not None:
            return 0
        return len(self.prompt_token_ids) + self.max_tokens - 1 - self.num_computed_tokens

    def append(self, token_id: int, stop_token_ids: frozenset[int]) -> None:
        """Take the result of computing `next_token_id`; an answer only after the last known token."""
        self.num_computed_tokens += 1
        if self.num_computed_tokens < len(self.prompt_token_ids) + len(self.output_token_ids):
            return
        self.output_token_ids.append(token_id)
        if token_id in stop_token_ids:
            self.finish_reason = "stop"
        elif len(self.output_token_ids) == self.max_tokens:
            self.finish_reason = "length"
