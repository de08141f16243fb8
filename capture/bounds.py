"""How many tokens a decode step can bring. Knows nothing of captured sizes."""

from dataclasses import asdict, dataclass
from typing import Any

from oproj_pass.capture.checks import require_int
from oproj_pass.errors import ConfigError


@dataclass(frozen=True)
class StepBound:
    """The scheduler limits that bound one decode step, in vLLM's field names.

    Args:
        max_num_seqs: R, most requests in one step.
        max_num_batched_tokens: T, most tokens in one step.
        num_speculative_tokens: draft tokens verified per request and step, the most where they change.
        speculative_depths: the numbers of draft tokens that a step may have, where they change from step to
            step; every request of a step has equally many. Empty: always `num_speculative_tokens`.

    Raises:
        ConfigError: a value is not an integer or is out of range, T < R (which vLLM refuses too), or the
            deepest of `speculative_depths` is not `num_speculative_tokens`.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    num_speculative_tokens: int = 0
    speculative_depths: tuple[int, ...] = ()

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
        object.__setattr__(self, "speculative_depths", self._checked_depths())

    def _checked_depths(self) -> tuple[int, ...]:
        """The depths, ascending; none where there is only one."""
        for depth in self.speculative_depths:
            require_int("speculative_depths", depth, minimum=0)
        depths = tuple(sorted(set(self.speculative_depths)))
        if depths and depths[-1] != self.num_speculative_tokens:
            raise ConfigError(
                f"speculative_depths={depths}: the deepest is {depths[-1]}, required: num_speculative_tokens="
                f"{self.num_speculative_tokens}, the most drafts that a request has. Make them equal"
            )
        return depths if len(depths) > 1 else ()

    @property
    def query_lens(self) -> tuple[int, ...]:
        """Tokens of one decode request at each depth, ascending."""
        return tuple(1 + depth for depth in self.speculative_depths) or (self.decode_query_len,)

    @property
    def decode_query_len(self) -> int:
        """q, most tokens of one decode request: the last sampled token and its drafts."""
        return 1 + self.num_speculative_tokens

    @property
    def max_decode_tokens(self) -> int:
        """Tokens of the largest possible decode step, min(T, R * q)."""
        return min(self.max_num_batched_tokens, self.max_num_seqs * self.decode_query_len)

    @property
    def idle_tokens(self) -> int:
        """Tokens that a rank without requests brings, one decode request's of the least depth, cut to T."""
        return min(self.max_num_batched_tokens, self.query_lens[0])

    def reachable_steps(self) -> tuple[int, ...]:
        """Token counts a uniform decode step can have, ascending, at any of its depths.

        These are the multiples of q up to the largest step of that q, and that step itself: where T cuts
        R * q, the scheduler fills T with a request that has fewer drafts.
        """
        steps: set[int] = set()
        for query_len in self.query_lens:
            largest = self._largest_at(query_len)
            steps |= {*range(query_len, largest + 1, query_len), largest}
        return tuple(sorted(steps))

    def largest_step_within(self, ceiling: int) -> int | None:
        """Largest reachable step of at most `ceiling` tokens, None if every step is larger."""
        return (
            max(
                step if (step := self._largest_at(query_len)) <= ceiling else ceiling // query_len * query_len
                for query_len in self.query_lens
            )
            or None
        )

    def to_dict(self) -> dict[str, Any]:
        """The limits as JSON types; without depths where there is only one."""
        limits = asdict(self)
        depths = list(limits.pop("speculative_depths"))
        return limits | ({"speculative_depths": depths} if depths else {})

    def _largest_at(self, query_len: int) -> int:
        return min(self.max_num_batched_tokens, self.max_num_seqs * query_len)
