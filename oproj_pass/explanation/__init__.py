"""What sharding would do to a model, from the model alone: no process group, no change, no weights needed.

Reports load without torch, which only ``explain`` needs: it loads on first use.
"""

from typing import TYPE_CHECKING, Any

from oproj_pass.torch_internals import require_internals

if TYPE_CHECKING:
    from oproj_pass.explanation.explaining import explain
    from oproj_pass.explanation.report import ExplainReport, GraphBreak, ProjectionRow

__all__ = ["ExplainReport", "GraphBreak", "ProjectionRow", "explain"]


def __getattr__(name: str) -> Any:
    if name == "explain":
        require_internals("oproj_pass")
        from oproj_pass.explanation.explaining import explain  # noqa: PLC0415

        return explain
    if name in __all__:
        from oproj_pass.explanation import report  # noqa: PLC0415

        return getattr(report, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
