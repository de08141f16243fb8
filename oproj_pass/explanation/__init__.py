"""What sharding would do to a model, from the model alone: no process group, no change, no weights needed."""

from oproj_pass.torch_internals import require_internals

require_internals("oproj_pass")

from oproj_pass.explanation.explain import explain
from oproj_pass.explanation.report import ExplainReport, GraphBreak, ProjectionRow

__all__ = ["ExplainReport", "GraphBreak", "ProjectionRow", "explain"]
