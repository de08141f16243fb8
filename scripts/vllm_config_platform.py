"""A device for vLLM's configuration layer alone: it changes no default, so a VllmConfig is upstream's own.

For deriving what vLLM would decide on a device with graphs, where there is none. Call ``use()`` before
anything else of vLLM is imported.
"""

from typing import Any

import torch
import vllm.platforms
from vllm.platforms.interface import Platform, PlatformEnum


class ConfigPlatform(Platform):  # type: ignore[misc]
    """An out-of-tree device with graph capture."""

    _enum = PlatformEnum.OOT
    device_name = device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """Any name."""
        return "configuration only"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """A device's usual size in bytes."""
        return 64 << 30

    @classmethod
    def import_kernels(cls) -> None:
        """None: nothing runs, and a wheel's kernels may be for another processor."""

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        """It captures graphs."""
        return True

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Fill in what vLLM leaves to every platform, and nothing else."""
        if vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = "vllm.v1.worker.gpu_worker.Worker"
        if vllm_config.cache_config.block_size is None:
            vllm_config.cache_config.block_size = 16

    @classmethod
    def get_attn_backend_cls(cls, *args: Any, **kwargs: Any) -> str:
        """Any backend that imports."""
        return "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"

    @classmethod
    def inference_mode(cls) -> Any:
        """As on a CPU."""
        return torch.no_grad()

    @classmethod
    def get_global_graph_pool(cls) -> None:
        """No memory pool: nothing is captured."""


def use() -> None:
    """Make it this process's platform."""
    vllm.platforms.current_platform = ConfigPlatform()
