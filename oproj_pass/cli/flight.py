"""`oproj flight`: where the flight records of several ranks first differ."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from oproj_pass.cli.output import Json, Status, finish, show
from oproj_pass.flight.compare import Difference, first_difference, read_record

EXAMPLE = "Example: oproj flight flight/rank0.json flight/rank1.json"


def run(
    records: Annotated[
        list[Path],
        typer.Argument(exists=True, dir_okay=False, help="A record of each rank, two or more."),
    ],
    json: Json = False,
) -> None:
    """Name the first step and collective at which ranks differ, from the records that they wrote.

    Exit status as of diff: 0 the ranks were in step, 1 they differ, 2 bad input.
    """
    if len(records) < 2:
        raise typer.BadParameter("give the records of two ranks or more")
    read = [read_record(path) for path in records]
    difference = first_difference(read)
    why = {str(record["rank"]): record["reason"] for record in read}
    found = difference.as_json() if difference else None
    show({"difference": found, "written": why}, Text(_text(difference, why)), as_json=json)
    finish(Status.NO if difference else Status.OK)


def _text(difference: Difference | None, why: dict[str, str]) -> str:
    written = [f"rank {rank} wrote its record on: {reason}" for rank, reason in why.items()]
    if difference is None:
        return "\n".join(["The ranks were in step as far as their records go.", *written])
    step = f"agreement {difference.number} of {difference.name!r}" if difference.name else "a graph's meeting"
    told = [f"  rank {rank}: {found}" for rank, found in difference.by_rank.items()]
    where = f" at {difference.collective}" if difference.collective else ""
    return "\n".join([f"The ranks first differ in {step}, in its {difference.what}{where}:", *told, *written])
