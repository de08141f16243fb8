"""What the rules look at: a deployment with its sizes parsed and its connector chain walked, once.

Decides nothing about right or wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd

from oproj_pass.automatic_sizes import AUTO_SIZES
from oproj_pass.capture import StepBound, plan_capture, vllm_sizes
from oproj_pass.capture.baselines import runner_v1_sizes
from oproj_pass.capture.platforms import platform_of
from oproj_pass.deployment.connectors import Connector, walk_connectors
from oproj_pass.deployment.finegrained import FineGrainedSizes, read_sizes
from oproj_pass.deployment.graph_mode import CUDAGraphMode
from oproj_pass.deployment.knobs import UNIFORM_STEPS, Knob
from oproj_pass.deployment.model import Deployment
from oproj_pass.deployment.rule import Rule
from oproj_pass.deployment.switches import RECOMPUTE_SCHEDULER, SCHEDULER_SECTION, Setting, section

__all__ = ["Facts"]


@dataclass(frozen=True)
class Facts:
    """One deployment as the rules see it; every fact is derived once."""

    deployment: Deployment

    @cached_property
    def sizes(self) -> FineGrainedSizes:
        """The fine-grained sizes, with rule 1's findings; one that is automatic is the largest that fits."""
        read = read_sizes(self.deployment.additional_config)
        return replace(read, sizes=read.sizes | {knob: self.largest_size(knob) for knob in read.automatic})

    @cached_property
    def uniform(self) -> dict[Knob, int]:
        """The sizes that are on and need every rank to bring the same number of tokens."""
        return {knob: size for knob, size in self.sizes.active.items() if knob in UNIFORM_STEPS}

    @cached_property
    def splits(self) -> dict[Knob, int]:
        """Those that really split (N > 1): rule 14 exempts the others from rules 8 to 10 and 13."""
        return {knob: size for knob, size in self.uniform.items() if size > 1}

    def fitting_sizes(self, knob: Knob) -> list[int]:
        """Every size of `knob` that divides the data-parallel ranks, and the features that it cuts."""
        width, inner = self.deployment.oproj_input_size, self.deployment.mlp_intermediate_sizes
        cut = {Knob.OPROJ: (width or 0,), Knob.MLP: inner or ()}.get(knob, ())
        common = gcd(self.deployment.data_parallel_size, *cut)
        return [n for n in range(1, common + 1) if common % n == 0]

    def largest_size(self, knob: Knob) -> int:
        """What `knob` at "auto" is at most: the largest of 8, 4 and 2 that fits, else 1."""
        fitting = self.fitting_sizes(knob)
        return next((size for size in AUTO_SIZES if size in fitting), 1)

    @cached_property
    def recompute_scheduler(self) -> Setting:
        """The recompute scheduler's switch as written, and where; in `scheduler_config` it wins."""
        config, key = self.deployment.additional_config, RECOMPUTE_SCHEDULER
        inner = section(config, SCHEDULER_SECTION)
        if key in inner or key not in config:
            return Setting(Rule.RECOMPUTE_SCHEDULER.field, inner.get(key, False))
        return Setting(f"additional_config.{key}", config[key])

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
        """Largest size with a graph; 0 where none is captured.

        A given list is final: the engine cuts it to the token limit and rounds it to whole requests, and adds
        nothing. Without one the sizes are planned, and a plan ends in the largest step under its ceiling.
        """
        deployment, bound = self.deployment, self.bound
        if self.graph_mode is CUDAGraphMode.NONE:
            return 0
        if deployment.cudagraph_capture_sizes is not None:
            listed = vllm_sizes(bound, sizes=deployment.cudagraph_capture_sizes)
            return max(runner_v1_sizes(listed, bound), default=0) if listed else 0
        ceiling = deployment.max_cudagraph_capture_size
        if ceiling is not None and bound.largest_step_within(ceiling) is None:
            return 0
        platform = platform_of(deployment.device_type)
        return plan_capture(bound, max_size=ceiling, platform=platform).max_size
