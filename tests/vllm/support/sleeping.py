"""vLLM's sleep mode on a CPU: the worker's own code for accelerators, over a pool of this file.

The pool holds what ``load_model`` allocated of the model, as vLLM's does under the tag ``weights``. A CPU
cannot unmap memory, so what a sleep takes is filled with NaN until it is brought back, or for good.
"""

from unittest.mock import patch

import torch
from vllm.device_allocator.sleep_mode_backend import SleepModeBackend, SleepModeBackendFactory
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu_worker import Worker

NAME = "pool_on_cpu"
_pool = []  # of this process, which is one rank


class PoolOnCpu(SleepModeBackend):
    """As ``CuMemBackend``: level 1 keeps a copy of the weights, level 2 none."""

    def suspend(self, level=1):
        self.kept = [(pooled, pooled.clone()) for pooled in _held()] if level == 1 else []
        lose_weights()

    def resume(self, tags=None):
        for pooled, kept in self.kept:
            pooled.copy_(kept)


def use():
    """For this process, before an engine is built."""
    SleepModeBackendFactory._registry[NAME] = lambda: PoolOnCpu
    load_model = CPUWorker.load_model

    def load_into_pool(worker, **options):
        load_model(worker, **options)
        worker.vllm_config.model_config.sleep_mode_backend = NAME
        for parameter in worker.model_runner.model.parameters():
            shard = getattr(parameter, "shard", None)
            storage = parameter.untyped_storage() if shard is None else shard.tensor.untyped_storage()
            _pool.append(torch.tensor([], dtype=parameter.dtype).set_(storage))

    CPUWorker.load_model = load_into_pool
    CPUWorker.sleep, CPUWorker.wake_up = Worker.sleep, Worker.wake_up
    CPUWorker.synchronize_device = lambda worker: None
    for name, value in (("synchronize", None), ("get_memory_info", (0, 0))):
        patch.object(torch.accelerator, name, lambda *_, value=value: value).start()


def lose_weights():
    """As waking up from level 2, before new weights are loaded."""
    for pooled in _held():
        pooled.fill_(torch.nan)


def _held():
    return [pooled for pooled in _pool if pooled.untyped_storage().nbytes()]  # the rest was released
