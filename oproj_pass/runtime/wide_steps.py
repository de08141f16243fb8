"""Runs a step that no captured graph serves unsharded: eager, each weight gathered just ahead of its use.

Every rank of the group takes part, with as many rows as it has, an idle one with its dummy batch. What is
gathered, and in which order, is learned at capture, where the ranks also agree whether all of them can.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from oproj_pass.agreement.wire import StepKind
from oproj_pass.capture import GraphMode
from oproj_pass.profiling import profiled
from oproj_pass.runtime.agree import AgreedStep
from oproj_pass.runtime.dynamo_callback import substituting
from oproj_pass.runtime.peers import Peers
from oproj_pass.weights.gather import GatheredWeights
from oproj_pass.weights.gather_order import Order, digest, order_of_reads

logger = logging.getLogger(__name__)


class WideSteps:
    """The unsharded steps of ``fn``; ``arguments``: a call of it on padding rows, to learn from.

    ``cannot``: why no step of the group is run like this, equal on all ranks; None if steps are.
    """

    def __init__(
        self, fn: Callable[..., Any], arguments: Mapping[str, Any], peers: Peers, timeout: float
    ) -> None:
        self._fn = fn
        self._weights: GatheredWeights | None = None
        order: Order = ()
        reason = ""
        try:
            order = order_of_reads(lambda: self._call(arguments))
            self._weights = GatheredWeights(order, timeout)
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        self.cannot = _cannot(peers.agree(StepKind.GATHER, digest(order), GraphMode.FULL, reason))
        if self._weights is not None and self.cannot is None:
            self._weights.limit_collectives()
            logger.info(
                "%s: wide steps gather %d weights, through two buffers of %.1f MB",
                peers.name, sum(map(len, order)), self._weights.buffer_nbytes / 1e6,
            )  # fmt: skip
        else:
            self._weights = None
            logger.warning(
                "%s: wide steps are refused, although wide_steps='gather': %s", peers.name, self.cannot
            )

    @property
    def nbytes(self) -> int:
        """Bytes of both buffers."""
        return 2 * self._weights.buffer_nbytes if self._weights else 0

    @property
    def sent_nbytes(self) -> int:
        """Bytes of its parts of all weights that a rank sends to the others in a step."""
        return self._weights.sent_nbytes if self._weights else 0

    @profiled("oproj_pass::wide_step")
    def run(self, inputs: Mapping[str, Any]) -> Any:
        """The result for all rows of ``inputs``, once the group has agreed on a wide step."""
        assert self._weights is not None
        with self._weights.serving(), torch.inference_mode():
            return self._call(
                pytree.tree_map_only(Tensor, Tensor.clone, dict(inputs))
            )  # as a graph gets copies

    def _call(self, inputs: Mapping[str, Any]) -> Any:
        with substituting(_as_python), torch.inference_mode():
            return self._fn(**inputs)


def _as_python(callback: Callable[..., Any]) -> None:
    """Compiled code runs as the Python that it was made of: a graph is sharded, and of one shape."""


def _cannot(step: AgreedStep) -> str | None:
    cannot = [
        f"rank {rank} cannot: {row.reason}"
        for rank, row in zip(step.ranks, step.rows, strict=True)
        if row.reason
    ]
    if cannot:
        return "; ".join(cannot)
    if len(set(step.tokens_by_rank.values())) > 1:
        return (
            "the ranks would not gather equal weights in an equal order. All of them must run the same layers"
            " and release the same weights (each rank's log says which it keeps in full)"
        )
    return None
