"""How many graphs an Ascend device's streams allow.

Turns a deployment's shape into the `budget` of `plan_capture`. The formula is the one vllm-ascend used until
June 2026 (`update_aclgraph_sizes`) for graphs captured piece by piece: every piece of every captured size
holds streams, and so does every communication group it uses. Newer releases only report the failed capture.
"""

from dataclasses import dataclass

from oproj_pass.capture.checks import require_int
from oproj_pass.errors import ConfigError

USABLE_STREAMS = 1800
"""Streams of a device, 2048, less the 248 that the runtime keeps."""

STREAMS_PER_CONTEXT_GROUP = 100
STREAMS_PER_COMMUNICATION_GROUP = 40

_PIECEWISE_MODES = ("PIECEWISE", "FULL_AND_PIECEWISE")
_OTHER_MODES = ("NONE", "FULL", "FULL_DECODE_ONLY")


@dataclass(frozen=True)
class StreamShape:
    """The parts of a deployment that decide how many streams one captured size takes.

    Field names are vLLM's where it has one. `aiv_expansion` is `HCCL_OP_EXPANSION_MODE=AIV`, which runs
    collectives on vector cores and so needs one stream a group instead of two.

    Raises:
        ConfigError: a count is below its minimum, experts are parallel in a model without any, or the graph
            mode is unknown.
    """

    num_layers: int
    num_draft_layers: int = 0
    data_parallel_size: int = 1
    tensor_parallel_size: int = 1
    prefill_context_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    is_moe: bool = False
    enable_expert_parallel: bool = False
    multistream_shared_expert: bool = False
    aiv_expansion: bool = False
    cudagraph_mode: str = "PIECEWISE"

    def __post_init__(self) -> None:
        require_int("num_layers", self.num_layers, minimum=1)
        require_int("num_draft_layers", self.num_draft_layers, minimum=0)
        for field in ("data", "tensor", "prefill_context", "decode_context"):
            name = f"{field}_parallel_size"
            require_int(name, getattr(self, name), minimum=1)
        if self.enable_expert_parallel and not self.is_moe:
            raise ConfigError("enable_expert_parallel=True needs an MoE model, got is_moe=False")
        if self.cudagraph_mode not in (*_PIECEWISE_MODES, *_OTHER_MODES):
            known = ", ".join((*_PIECEWISE_MODES, *_OTHER_MODES))
            raise ConfigError(f"cudagraph_mode={self.cudagraph_mode!r} is unknown: use one of {known}")

    def max_graphs(self, num_sizes: int) -> int | None:
        """Most sizes the streams allow, at least 1; None if the graph mode is not limited by streams.

        Args:
            num_sizes: sizes wanted; with FULL_AND_PIECEWISE each takes a stream for its full graph.
        """
        require_int("num_sizes", num_sizes, minimum=1)
        if self.cudagraph_mode not in _PIECEWISE_MODES:
            return None
        streams = USABLE_STREAMS - (num_sizes if self.cudagraph_mode == "FULL_AND_PIECEWISE" else 0)
        graphs = self._aiv_graphs(streams) if self.aiv_expansion else self._host_graphs(streams)
        return max(1, graphs)

    @property
    def _pieces(self) -> int:
        """Pieces of one graph: split at each layer's attention, for the model and for its drafter."""
        return self.num_layers + 1 + (self.num_draft_layers + 1 if self.num_draft_layers else 0)

    @property
    def _groups(self) -> int:
        return (self.data_parallel_size > 1) + (self.tensor_parallel_size > 1)

    def _aiv_graphs(self, streams: int) -> int:
        per_piece = 1 + self._groups + self.enable_expert_parallel + self.multistream_shared_expert
        if self.is_moe:
            per_piece += self.data_parallel_size > 1
        else:
            streams -= per_piece * self._pieces
        return streams // (self._pieces * per_piece)

    def _host_graphs(self, streams: int) -> int:
        context_groups = (self.prefill_context_parallel_size > 1) + (self.decode_context_parallel_size > 1)
        streams -= STREAMS_PER_CONTEXT_GROUP * context_groups
        streams -= STREAMS_PER_COMMUNICATION_GROUP * self._groups
        return streams // (self._pieces * (1 + 2 * self._groups))
