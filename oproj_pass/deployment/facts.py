"""What the rules look at: a deployment with its sizes parsed and its connector chain walked, once.

Decides nothing about right or wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from oproj_pass.capture import StepBound, plan_capture
from oproj_pass.deployment.connectors import Connector, walk_connectors
from oproj_pass.deployment.finegrained import FineGrainedSizes, read_sizes
from oproj_pass.deployment.graph_mode import CUDAGraphMode
from oproj_pass.deployment.model import Deployment

__all__ = ["Facts"]


@dataclass(frozen=True)
class Facts:
    """One deployment as the rules see it; every fact is derived once."""

    deployment: Deployment

    @cached_property
    def sizes(self) -> FineGrainedSizes:
        """The fine-grained sizes, with rule 1's findings."""
        return read_sizes(self.deployment.additional_config)

    @property
    def oproj(self) -> int:
        """N as asked for: 0 is off, 1 exchanges nothing, more is a real split."""
        return self.sizes.oproj

    @property
    def splits(self) -> bool:
        """Whether o_proj is really split (N > 1): rule 14 exempts anything less from rules 8 to 10 and 13."""
        return self.oproj > 1

    @cached_property
    def connectors(self) -> tuple[Connector, ...]:
        """Every connector of the chain."""
        return walk_connectors(self.deployment.kv_transfer_config)

    @cached_property
    def graph_mode(self) -> CUDAGraphMode:
        """The graph mode left after platform rewrites."""
        return self.deployment.effective_cudagraph_mode

    @cached_property
    def bound(self) -> StepBound:
        """The bound of a decode step."""
        return StepBound(
            max_num_seqs=self.deployment.max_num_seqs,
            max_num_batched_tokens=self.deployment.max_num_batched_tokens,
            num_speculative_tokens=self.deployment.num_speculative_tokens,
        )

    @cached_property
    def largest_captured_size(self) -> int:
        """Largest size with a graph, judged on the final sizes; 0 where none is captured."""
        deployment, bound = self.deployment, self.bound
        sizes, ceiling = deployment.cudagraph_capture_sizes, deployment.max_cudagraph_capture_size
        largest_asked = max(sizes, default=0) if sizes is not None else ceiling
        if self.graph_mode is CUDAGraphMode.NONE or (
            largest_asked is not None and largest_asked < min(bound.decode_query_len, bound.max_decode_tokens)
        ):
            return 0
        platform = "npu" if deployment.device_type == "npu" else "cuda"
        return plan_capture(bound, sizes=sizes, max_size=ceiling, platform=platform).max_size
