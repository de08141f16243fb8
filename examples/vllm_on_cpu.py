"""What vLLM lacks on a CPU to run data-parallel mixtures of experts, and what it hides from a compiler there.

For trying things out without an accelerator only; no accelerator platform needs any of it.
"""

from typing import Any

import torch
import torch.distributed as dist
from vllm import _custom_ops
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.model_executor.layers.fused_moe.runner import moe_runner
from vllm.platforms import current_platform


class UnequalRows(CpuCommunicator):  # type: ignore[misc]
    """The CPU communicator with the two collectives of unequal row counts that a MoE layer calls."""

    def all_gatherv(self, input_: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
        """Every rank's rows, one after the other."""
        if isinstance(input_, list | tuple):
            return [self.all_gatherv(part, dim, sizes) for part in input_]
        sizes = sizes or [len(input_)] * self.world_size
        padded = input_.new_zeros(max(sizes), *input_.shape[1:])
        padded[: len(input_)] = input_
        gathered = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(gathered, padded, group=self.device_group)
        return torch.cat([part[:size] for part, size in zip(gathered, sizes, strict=True)])

    def reduce_scatterv(self, input_: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
        """The sum over ranks, of which each keeps its own rows."""
        sizes = sizes or [len(input_) // self.world_size] * self.world_size
        total = input_.clone()
        dist.all_reduce(total, group=self.device_group)
        start = sum(sizes[: self.rank_in_group])
        return total[start : start + sizes[self.rank_in_group]].contiguous()


def prepare() -> None:
    """Make this process's vLLM run such models on the CPU. Call it before the engine is built."""
    platform = type(current_platform)
    communicator = f"{UnequalRows.__module__}.{UnequalRows.__qualname__}"
    platform.get_device_communicator_cls = classmethod(lambda cls: communicator)
    _custom_ops._supports_onednn = False  # else a linear layer's weight is an opaque handle in the graph
    for runner in vars(moe_runner).values():
        if isinstance(runner, type) and "_select_forward" in vars(runner):
            runner._select_forward = _opaque_experts  # as accelerators do; else experts are traced as Python


def _opaque_experts(runner: Any) -> Any:
    operators = torch.ops.vllm
    return operators.moe_forward if runner._shared_experts is None else operators.moe_forward_shared
