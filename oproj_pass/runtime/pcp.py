"""Prefill context parallelism (PCP): what a step brings to dispatch, and what an idle rank replays over.

Which tokens a rank holds is `oproj_pass.capture`'s (`ContextSplit`); this module prepares a runner's step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oproj_pass.capture import ContextBatch
from oproj_pass.capture.pcp import is_prefilling
from oproj_pass.errors import ConfigError


@dataclass(frozen=True)
class ContextParallelStep:
    """The requests of one step under PCP, for ``PrefillRunner.step``.

    A ``DecodeRunner`` takes its ``num_tokens``.

    Attributes:
        pcp_size: P, ranks that share a prefill.
        num_scheduled: tokens each request runs in this step, before any split.
        prompt_lens: tokens that each request prefills: its prompt, and after a preemption also what it had
            generated.
        num_computed: tokens each request had computed before this step, or a callable that waits for them.
            With speculative decoding the count follows from an update that the device sends asynchronously;
            read too early it is the previous step's, and a decode is taken for a prefill. Pass values only
            once they have arrived, else a callable: it is called once, when the step asks.
    """

    pcp_size: int
    num_scheduled: Sequence[int]
    prompt_lens: Sequence[int]
    num_computed: Sequence[int] | Callable[[], Sequence[int]]

    def num_tokens(self) -> int:
        """Tokens of the rank that runs most; a request with one token to prefill runs on every rank."""
        return self.batch().local_total

    def batch(self) -> ContextBatch:
        """Which rows each rank runs; ``ConfigError`` if the requests' numbers do not fit together."""
        computed = self.num_computed() if callable(self.num_computed) else self.num_computed
        if not len(computed) == len(self.prompt_lens) == len(self.num_scheduled):
            raise ConfigError(
                f"num_computed has {len(computed)} requests, prompt_lens {len(self.prompt_lens)}, "
                f"num_scheduled {len(self.num_scheduled)}: one entry for each request is required"
            )
        prefills = tuple(is_prefilling(*request) for request in zip(self.prompt_lens, computed, strict=True))
        return ContextBatch(self.pcp_size, tuple(self.num_scheduled), prefills)


def local_slots(slots: Tensor, pcp_size: int, rank: int) -> Tensor:
    """The slots [groups, tokens] that ``rank`` writes, out of [groups, P * tokens] in rank-major order.

    ``slots`` may be non-contiguous: it is reshaped, never viewed. Raises ``ConfigError`` if P does not
    divide it.
    """
    groups, total = slots.shape
    if total % pcp_size:
        raise ConfigError(
            f"slots of shape {tuple(slots.shape)} do not split over pcp_size={pcp_size} ranks: pad each "
            "rank's part to the same number of tokens"
        )
    return slots.reshape(groups, pcp_size, total // pcp_size)[:, rank]


def idle_slots(groups: int, pcp_size: int, num_tokens: int, device: torch.device | None = None) -> Tensor:
    """Slots [groups, P * num_tokens] of a dummy batch: -1, so that it writes nowhere."""
    return torch.full((groups, pcp_size * num_tokens), -1, device=device)


def idle_restore_index(rank: int, num_tokens: int, device: torch.device | None = None) -> Tensor:
    """Where a dummy batch's rows [num_tokens] are among all ranks' rows gathered in rank order."""
    return torch.arange(rank * num_tokens, (rank + 1) * num_tokens, device=device)
