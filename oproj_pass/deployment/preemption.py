"""What a scheduler does with a preempted request whose KV cache could not be offloaded (rule 15).

Decides between aborting the request and the stock way back to the prefill node. It touches no request: the
caller carries the outcome out. Nothing is raised, because one failed offload must not take the engine down.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from oproj_pass.errors import OProjError

__all__ = ["PreemptionAction", "PreemptionOutcome", "PreemptionPolicy"]


class PreemptionAction(enum.Enum):
    """What to do with the preempted request."""

    ABORT = "abort"
    RETURN_TO_PREFILL = "return_to_prefill"


@dataclass(frozen=True)
class PreemptionOutcome:
    """The decision for one request; `error` is what its client is told, and None unless it is aborted."""

    request_id: str
    action: PreemptionAction
    error: OProjError | None


@dataclass(frozen=True)
class PreemptionPolicy:
    """Rule 15, for the effective `oproj_tensor_parallel_size` of a report (after rule 13)."""

    oproj_tensor_parallel_size: int

    def on_offload_failure(self, request_id: str, reason: str) -> PreemptionOutcome:
        """Decide the fate of `request_id`, whose offload at preemption failed for `reason`.

        A real split (size > 1) aborts it: the prefill node would recompute its KV cache with full weights and
        other kernels, and the recomputed cache is not equivalent to the one that decode has built upon.
        """
        if self.oproj_tensor_parallel_size <= 1:
            return PreemptionOutcome(request_id, PreemptionAction.RETURN_TO_PREFILL, None)
        error = OProjError(
            f"request {request_id} was preempted and its KV cache could not be offloaded ({reason}). With "
            f"oproj_tensor_parallel_size={self.oproj_tensor_parallel_size} it is aborted and not returned "
            "to the prefill node, because a recomputed cache is not equivalent. Send it again; if this "
            "repeats, raise cpu_bytes_to_use_per_rank of PreemptOffloadConnector or lower max_num_seqs."
        )
        return PreemptionOutcome(request_id, PreemptionAction.ABORT, error)
