"""Which requests of a rank run in a step, and in which slots.

A prompt is computed token by token by the decode graph, so a step is one token for each running request. An
urgent request that finds no free slot preempts another: the victim's cache is offloaded and comes back when a
slot is free, or, where it does not fit the offload buffer, rule 15 decides (`PreemptionPolicy`).
"""

from collections.abc import Iterable, Sequence

from torch import Tensor

from oproj_pass.demo.request import Request
from oproj_pass.demo.slots import SlotDecoder
from oproj_pass.deployment import PreemptionAction, PreemptionPolicy
from oproj_pass.errors import ConfigError


class Scheduler:
    """The requests of one rank.

    Args:
        requests: everything that will arrive.
        decoder: whose slots are given out.
        stop_token_ids: tokens that end an answer.
        policy: what becomes of a request that could not be offloaded.
        offload_tokens: tokens that the offload buffer holds.

    Raises:
        ConfigError: a request is too long for a slot.
    """

    def __init__(
        self,
        requests: Iterable[Request],
        decoder: SlotDecoder,
        *,
        stop_token_ids: Iterable[int],
        policy: PreemptionPolicy,
        offload_tokens: int,
    ) -> None:
        self.requests = tuple(requests)
        for request in self.requests:
            _require_fitting(request, decoder.max_model_len)
        self.running: list[Request] = []
        self._decoder = decoder
        self._free_slots = list(range(decoder.max_num_seqs, 0, -1))
        self._offloaded: dict[str, Tensor] = {}
        self._stop_token_ids = frozenset(stop_token_ids)
        self._policy = policy
        self._offload_tokens = offload_tokens

    @property
    def num_tokens_left(self) -> int:
        """Tokens still to compute, at most."""
        return sum(request.num_tokens_left for request in self.requests)

    def schedule(self, step: int) -> list[Request]:
        """The requests that bring one token each to this step; empty while the rank is idle."""
        for request in self._waiting(step):
            if not self._free_slots and request.urgent:
                self._preempt_one()
            if self._free_slots:
                self._start(request)
        return self.running

    def update(self, token_ids: Sequence[int]) -> None:
        """Take the token sampled for each running request, in `schedule`'s order."""
        for request, token_id in zip(self.running, token_ids, strict=True):
            request.append(token_id, self._stop_token_ids)
        for request in [request for request in self.running if request.finish_reason is not None]:
            self._stop(request)

    def _waiting(self, step: int) -> list[Request]:
        """Arrived and not running, the urgent ones first, each kind in order of arrival."""
        waiting = [
            request
            for request in self.requests
            if request.arrival_step <= step and request.slot is None and request.finish_reason is None
        ]
        return sorted(waiting, key=lambda request: (not request.urgent, request.arrival_step))

    def _start(self, request: Request) -> None:
        request.slot = self._free_slots.pop()
        self.running.append(request)
        saved = self._offloaded.pop(request.request_id, None)
        if saved is not None:
            self._decoder.copy_in(request.slot, saved)

    def _stop(self, request: Request) -> None:
        assert request.slot is not None
        self.running.remove(request)
        self._free_slots.append(request.slot)
        request.slot = None

    def _preempt_one(self) -> None:
        """Make room by the request that arrived last among those that are not urgent, if there is one."""
        victims = [request for request in self.running if not request.urgent]
        if not victims:
            return
        victim = max(victims, key=lambda request: request.arrival_step)
        assert victim.slot is not None
        held = sum(saved.shape[3] for saved in self._offloaded.values())
        if held + victim.num_computed_tokens <= self._offload_tokens:
            saved = self._decoder.copy_out(victim.slot, victim.num_computed_tokens)
            self._offloaded[victim.request_id] = saved
            victim.num_preemptions += 1
        else:
            self._give_up(victim, self._offload_tokens - held)
        self._stop(victim)

    def _give_up(self, victim: Request, free_tokens: int) -> None:
        reason = f"{victim.num_computed_tokens} tokens of cache, room for {free_tokens} in the offload buffer"
        outcome = self._policy.on_offload_failure(victim.request_id, reason)
        if outcome.action is PreemptionAction.ABORT:
            victim.finish_reason = "abort"
            victim.error = str(outcome.error)
        else:  # nothing is sharded: recomputing the cache is equivalent
            victim.num_computed_tokens = 0


def _require_fitting(request: Request, max_model_len: int) -> None:
    prompt, answer = len(request.prompt_token_ids), request.max_tokens
    if prompt + answer > max_model_len:
        raise ConfigError(
            f"request {request.request_id}: {prompt} prompt tokens and max_tokens = {answer} do not fit "
            f"max_model_len = {max_model_len}. Shorten the prompt or the answer."
        )
