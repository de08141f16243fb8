"""`oproj check`: may this deployment shard o_proj, and if not, what is to change."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oproj_pass.cli.output import Json, Status, finish, show
from oproj_pass.cli.source import Source, read_deployment

if TYPE_CHECKING:
    from oproj_pass.deployment import DeploymentReport

EXAMPLE = "Example: oproj check decode.yaml"


def run(
    deployment: Source = None,
    hf_config: Annotated[
        Path | None,
        typer.Option(exists=True, help="The model's config.json, or its folder; wins over the deployment's."),
    ] = None,
    json: Json = False,
) -> None:
    """Check a serving deployment against every rule, and report all findings at once.

    Exit status: 0 no finding, 1 an error refuses the start, 3 warnings only, 2 the input is unusable.
    """
    from oproj_pass.deployment import check_deployment  # noqa: PLC0415

    report = check_deployment(read_deployment(deployment or (), hf_config))
    show(report.to_dict(), report, as_json=json)
    finish(_status(report))


def _status(report: "DeploymentReport") -> Status:
    if not report.ok:
        return Status.NO
    return Status.WARNING if report.warnings else Status.OK
