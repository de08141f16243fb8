"""`oproj doctor`: what this environment has, and what of it is on."""

from oproj_pass.cli.output import Json, Status, finish, show

EXAMPLE = "Example: oproj doctor"


def run(json: Json = False) -> None:
    """Show versions, devices, plugins, compilers, and what the environment switches on or off.

    Exit status: 0 ready, 1 something here keeps the backend from working, 2 bad input.
    """
    from oproj_pass.cli import diagnosis  # noqa: PLC0415 - loads torch

    found = diagnosis.diagnose()
    show(found.to_dict(), found, as_json=json)
    finish(Status.OK if not found.problems else Status.NO)
