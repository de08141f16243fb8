"""What all commands share of their output: exit status, JSON, the console for people."""

import json
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console, RenderableType

from oproj_pass.errors import ConfigError

_FILE_WIDTH = 120  # where there is no terminal whose width could be asked


class Status(IntEnum):
    """Exit status of every command."""

    OK = 0
    NO = 1
    BAD_INPUT = 2
    WARNING = 3


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def show(value: Any, text: RenderableType, *, as_json: bool) -> None:
    """Print ``value`` as JSON, or ``text`` for people."""
    if as_json:
        typer.echo(json.dumps(value, indent=2))
    else:
        console = Console()
        if not console.is_terminal:
            console = Console(width=_FILE_WIDTH)
        console.print(text, soft_wrap=True)


def write_page(path: Path, text: str, use: str = "open it in a browser") -> None:
    """Write a page to the file that an option named, and say so on stderr, with what it is for."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    typer.echo(f"wrote {path}: {use}", err=True)


def progress(message: str) -> Any:
    """A context that shows ``message`` on stderr while something long runs, if that is a terminal."""
    return Console(stderr=True).status(message)


def finish(status: Status) -> NoReturn:
    """End the command with ``status``."""
    raise typer.Exit(int(status))
