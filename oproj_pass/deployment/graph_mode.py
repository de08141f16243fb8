"""vLLM's graph and compilation modes, and which graph mode is left once the platform has had its say.

Decides the mode a worker will really run under. Whether that mode is allowed is for the rules.
"""

from __future__ import annotations

import enum
from typing import Any

__all__ = ["CUDAGraphMode", "CompilationMode", "effective_graph_mode", "parse_mode"]


class CUDAGraphMode(enum.Enum):
    """The five modes of vLLM's `compilation_config.cudagraph_mode`, by vLLM's names."""

    NONE = "NONE"
    PIECEWISE = "PIECEWISE"
    FULL = "FULL"
    FULL_DECODE_ONLY = "FULL_DECODE_ONLY"
    FULL_AND_PIECEWISE = "FULL_AND_PIECEWISE"

    @property
    def has_full_graphs(self) -> bool:
        """Whether some step replays the whole forward, so that no Python runs between its layers."""
        return self not in (CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE)

    @property
    def has_piecewise_graphs(self) -> bool:
        """Whether some step replays the pieces between attention layers."""
        return self in (CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL_AND_PIECEWISE)

    def __str__(self) -> str:
        return self.name


class CompilationMode(enum.IntEnum):
    """vLLM's `compilation_config.mode`."""

    NONE = 0
    STOCK_TORCH_COMPILE = 1
    DYNAMO_TRACE_ONCE = 2
    VLLM_COMPILE = 3


def parse_mode(kind: type[enum.Enum], value: Any) -> Any:
    """Return the member of `kind` named by `value`: a member, a name in any case, vLLM's enum or a number.

    Returns `value` unchanged when it names none, for the caller to report.
    """
    name = getattr(value, "name", value)
    if isinstance(name, str) and name.strip().upper() in kind.__members__:
        return kind[name.strip().upper()]
    if isinstance(value, int) and not isinstance(value, bool) and kind is CompilationMode:
        return next((mode for mode in CompilationMode if mode == value), value)
    return value


def effective_graph_mode(
    requested: CUDAGraphMode | None,
    *,
    enforce_eager: bool,
    compilation_mode: CompilationMode | None,
    device_type: str,
) -> CUDAGraphMode:
    """Return the graph mode left after the rewrites of vLLM and of the platform.

    `enforce_eager` is NONE. Piecewise graphs exist under VLLM_COMPILE only. vllm-ascend supports no
    compilation mode but NONE and VLLM_COMPILE: it turns any other, `mode=2, backend="oproj_npu"` included,
    into NONE with graphs off, and says so in a log line only.
    """
    if enforce_eager:
        return CUDAGraphMode.NONE
    if compilation_mode in (None, CompilationMode.VLLM_COMPILE):
        return requested or CUDAGraphMode.FULL_AND_PIECEWISE
    if device_type == "npu" and compilation_mode is not CompilationMode.NONE:
        return CUDAGraphMode.NONE
    if requested is None or requested.has_piecewise_graphs:
        return CUDAGraphMode.NONE
    return requested
