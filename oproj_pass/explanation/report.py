"""The report of `explain`, as people and notebooks see it."""

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult

from oproj_pass.explanation import render
from oproj_pass.explanation.explained import Explained
from oproj_pass.explanation.row import ProjectionRow
from oproj_pass.tracing.graph_break import GraphBreak

__all__ = ["ExplainReport", "GraphBreak", "ProjectionRow"]


@dataclass(frozen=True, repr=False)
class ExplainReport(Explained):
    """What ``oproj_npu`` would do to one model.

    ``oproj_tensor_parallel_size``: as configured. ``num_graphs``: graphs that Dynamo made of one call.
    ``role_sizes``: the sizes of the roles that were looked for, as configured.
    """

    def __repr__(self) -> str:
        sizes = ", ".join(map(str, self.sizes))
        return f"ExplainReport({render.headline(self)}; N = {sizes})"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield render.to_rich(self)

    def _repr_html_(self) -> str:
        return render.to_html(self)
