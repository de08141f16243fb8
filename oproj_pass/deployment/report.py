"""The report of a deployment check, as people and notebooks see it."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import RenderableType

from oproj_pass.deployment import render
from oproj_pass.deployment.findings import Findings

__all__ = ["DeploymentReport"]


@dataclass(frozen=True, repr=False)
class DeploymentReport(Findings):
    """Every finding of one check.

    `sizes` are the fine-grained sizes that will run: none that is off, unusable, or turned off by rule 13.
    `cudagraph_mode` is the mode left after platform rewrites. `not_judged` names the rules that could not be
    decided, and the fact that each is missing.
    """

    def __repr__(self) -> str:
        return f"DeploymentReport({render.headline(self)})"

    def __rich__(self) -> RenderableType:
        return render.to_rich(self)

    def _repr_html_(self) -> str:
        return render.to_html(self)
