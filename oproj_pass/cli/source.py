"""The deployment that a command is about: a file, a script, the standard input, or a command line."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oproj_pass.errors import ConfigError

if TYPE_CHECKING:
    from oproj_pass.deployment import Deployment

Source = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE | - | -- vllm serve ...",
        help="Deployment in vLLM's field names (.yaml, .yml, .json), a script that runs `vllm serve` (.sh, "
        ".bash), `-` for the standard input, or after `--` the command line itself.",
        show_default=False,
    ),
]


def read_deployment(source: Sequence[str], hf_config: Path | None = None) -> "Deployment":
    """The deployment that the arguments stand for, with the facts of ``hf_config`` in place of its own.

    Raises ``ConfigError`` where they stand for none.
    """
    deployment = _read(source)
    return deployment if hf_config is None else deployment.with_model(hf_config)


def _read(source: Sequence[str]) -> "Deployment":
    from oproj_pass.deployment import Deployment  # noqa: PLC0415 - other commands read none

    if not source:
        raise ConfigError("no deployment is given: a file, - for the standard input, or -- vllm serve ...")
    if len(source) > 1:
        return Deployment.from_command(source)
    if source[0] == "-":
        return Deployment.from_text(sys.stdin.read(), "standard input")
    return Deployment.from_file(source[0])
