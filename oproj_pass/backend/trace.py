"""What became of a graph, as an artifact of torch's structured trace (``TORCH_TRACE``, ``tlparse``)."""

import json

from torch._logging._internal import trace_structured

from oproj_pass.backend.policy import Decision


def trace_decision(decision: Decision) -> None:
    """Add the artifact ``oproj_sharding`` to the trace, if one is written."""
    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": "oproj_sharding", "encoding": "json"},
        payload_fn=lambda: json.dumps(_fields(decision), indent=2),
    )


def _fields(decision: Decision) -> dict[str, object]:
    return {
        "sizes": dict(decision.sizes),
        "sites": [
            {
                "path": site.path,
                "role": site.role,
                "scheme": site.scheme,
                "nbytes": site.nbytes,
                "ranks": decision.size_of(site),
                "strategy": strategy.name if (strategy := decision.strategies.get(site.node)) else None,
            }
            for site in decision.sites
        ],
        "near_misses": [{"path": miss.path, "reason": miss.reason} for miss in decision.near_misses],
    }
