"""How many tokens a decode step can bring. Knows nothing of captured sizes."""

from dataclasses import dataclass

from oproj_pass.capture.checks import require_int
from oproj_pass.errors import ConfigError


@dataclass(frozen=True)
class StepBound:
    """The scheduler limits that bound one decode step, in vLLM's field names.

    Args:
        max_num_seqs: R, most requests in one step.
        max_num_batched_tokens: T, most tokens in one step.
        num_speculative_tokens: draft tokens verified per request and step.

    Raises:
        ConfigError: a value is not an integer or is out of range, or T < R (which vLLM refuses too).
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    num_speculative_tokens: int = 0

    def __post_init__(self) -> None:
        require_int("max_num_seqs", self.max_num_seqs, minimum=1)
        require_int("max_num_batched_tokens", self.max_num_batched_tokens, minimum=1)
        require_int("num_speculative_tokens", self.num_speculative_tokens, minimum=0)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is below "
                f"max_num_seqs={self.max_num_seqs}: every running request needs at least one token a step. "
                f"Raise max_num_batched_tokens or lower max_num_seqs"
            )

    @property
    def decode_query_len(self) -> int:
        """q, tokens of one decode request: the last sampled token and its drafts."""
        return 1 + self.num_speculative_tokens

    @property
    def max_decode_tokens(self) -> int:
        """Tokens of the largest possible decode step, min(T, R * q)."""
        return min(self.max_num_batched_tokens, self.max_num_seqs * self.decode_query_len)

    @property
    def idle_tokens(self) -> int:
        """Tokens that a rank without requests brings, one decode request's: min(T, q)."""
        return min(self.max_num_batched_tokens, self.decode_query_len)

    def reachable_steps(self) -> tuple[int, ...]:
        """Token counts a uniform decode step can have, ascending.

        These are the multiples of q up to the largest step, and that step itself: where T cuts R * q, the
        scheduler fills T with a request that has fewer drafts.
        """
        largest = self.max_decode_tokens
        steps = tuple(range(self.decode_query_len, largest + 1, self.decode_query_len))
        return steps if largest % self.decode_query_len == 0 else (*steps, largest)

    def largest_step_within(self, ceiling: int) -> int | None:
        """Largest reachable step of at most `ceiling` tokens, None if every step is larger."""
        if ceiling >= self.max_decode_tokens:
            return self.max_decode_tokens
        return ceiling // self.decode_query_len * self.decode_query_len or None
