"""A model that runs on one rank's rows of a step, at a few sizes: splits the inputs, runs, restores once.

Decides nothing about peers; the runner agrees with them between ``checked`` and ``run``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oproj_pass.capture import ContextBatch
from oproj_pass.errors import ConfigError
from oproj_pass.groups import ShardGroup
from oproj_pass.runtime.context_buffers import ContextBuffers
from oproj_pass.runtime.context_rows import ContextRows
from oproj_pass.runtime.context_words import BatchWords
from oproj_pass.runtime.outputs import Outputs
from oproj_pass.runtime.pcp import ContextParallelStep


@dataclass(frozen=True)
class SplitStep:
    """The inputs of all rows of a step, and whose they are. ``idle``: a dummy batch."""

    inputs: Mapping[str, Any]
    batch: ContextBatch
    idle: bool = False

    def words(self, ranks: Sequence[int]) -> str:
        """What a rank of ``ranks``, which share the step, tells its peers."""
        return BatchWords.of(ranks, self.batch, idle=self.idle).pack()


class SplitModel:
    """``fn`` over ``buffers``, at ``sizes`` rows a rank; ``group``: the ranks that share a step, if any."""

    def __init__(
        self,
        fn: Callable[..., Any],
        buffers: ContextBuffers,
        outputs: Outputs,
        sizes: Sequence[int],
        group: ShardGroup | None,
    ) -> None:
        self._fn, self._buffers, self._outputs = fn, buffers, outputs
        self._sizes, self._num_ranks = sizes, group.size if group else 1

    def checked(self, inputs: Mapping[str, Any], requests: ContextParallelStep) -> SplitStep:
        """The step, its split planned; ``ConfigError`` for one that this rank cannot run."""
        if requests.pcp_size != self._num_ranks:
            raise ConfigError(
                f"the requests have pcp_size={requests.pcp_size}, the runner's `context` {self._num_ranks} "
                "rank(s): make both equal, 1 for a model that runs whole on every rank"
            )
        num_rows, batch = self._buffers.count_tokens(inputs), requests.batch()
        if num_rows != batch.num_tokens:
            raise ConfigError(
                f"inputs bring {num_rows} rows, num_scheduled adds up to {batch.num_tokens}: bring the rows "
                "of all requests, before any split"
            )
        self.size_of(batch.local_total)
        return SplitStep(inputs, batch)

    def dummy(self, current: Mapping[str, Any]) -> SplitStep:
        """A step without requests; ``ConfigError`` if an input without rows is missing."""
        return SplitStep(*self._buffers.dummy(current), idle=True)

    def size_of(self, num_tokens: int) -> int:
        """The smallest size that holds so many rows of a rank; ``ConfigError`` if none does."""
        size = next((size for size in self._sizes if size >= num_tokens), None)
        if size is None:
            raise ConfigError(
                f"the step brings {num_tokens} rows to each rank, the largest size is {self._sizes[-1]}. Run "
                "the prompts in chunks, or give a larger size"
            )
        return size

    def run(self, step: SplitStep, size: int) -> Any:
        """The result for all rows of the step; joins the group's collectives."""
        with torch.inference_mode():
            arguments, context = self._buffers.load(step.inputs, step.batch, size)
            output = self._fn(**arguments, context=context)
            self._outputs.require_fitting(output, size)
            return self._outputs.changed(output, lambda leaf, dim: _restored(leaf, dim, context, step.batch))


def _restored(leaf: Any, dim: int | None, context: ContextRows, batch: ContextBatch) -> Any:
    if not isinstance(leaf, Tensor) or dim is None:
        return leaf
    if not any(batch.is_prefill):
        return leaf.narrow(dim, 0, batch.num_tokens)  # every rank has all of them, in order
    return context.restored(leaf, dim, batch.num_tokens)
