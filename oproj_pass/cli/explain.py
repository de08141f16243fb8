"""`oproj explain`: what sharding does to a Hugging Face model, from its config.json alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Group
from rich.text import Text

from oproj_pass.cli.hf_model import config_fields, model_errors
from oproj_pass.cli.output import Json, Status, finish, show, write_page
from oproj_pass.cli.traced import NoCache, trace

if TYPE_CHECKING:
    from oproj_pass.explanation.quantization_config import CheckpointFormat

EXAMPLE = "Example: oproj explain DeepSeek-V3/config.json --oproj-tensor-parallel-size 8"


_COMPUTE_TYPES = ("bfloat16", "float16", "float32")
_NOTE = (
    "Weights as the checkpoint stores them: {}. Sent bytes are those of unquantised inputs, the most: an "
    "engine that quantises them before the exchange sends less."
)


def run(
    path: Annotated[
        Path, typer.Argument(exists=True, help="A config.json, or the model folder that holds it.")
    ],
    oproj_tensor_parallel_size: Annotated[
        int | None,
        typer.Option(min=2, help="Ranks that share a projection; by default 2, 4 and 8 are shown."),
    ] = None,
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32", "fp8", "int8", "int4"] | None,
        typer.Option(help="Of the stored weights; by default as the config and its quantization_config say."),
    ] = None,
    include: Annotated[list[str] | None, typer.Option(help="Module-path glob to take; repeatable.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Module-path glob to leave; repeatable.")] = None,
    html: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write one self-contained page instead of text.")
    ] = None,
    no_cache: NoCache = False,
    json: Json = False,
) -> None:
    """Show every attention of a model, what becomes of its output projection, and the bytes.

    Needs the extra `hf`, no weights and no network.

    Exit status: 0 the model can be sharded (over the given number of ranks), 1 it cannot, 2 bad input.
    """
    with model_errors(path):
        stored = _stored_as(config_fields(path), dtype)
    config = {
        "oproj_tensor_parallel_size": oproj_tensor_parallel_size or "auto",
        "include": include or (),
        "exclude": exclude or (),
    }
    compute_type = dtype if dtype in _COMPUTE_TYPES else None
    report = trace(path, compute_type, config, no_cache=no_cache).report
    note = None
    if stored is not None:
        from oproj_pass.explanation.stored import as_stored  # noqa: PLC0415

        report = as_stored(report, stored)
        note = _NOTE.format(stored)
    if html is not None:
        from oproj_pass.explanation.page import to_page  # noqa: PLC0415

        write_page(html, to_page(report, note))
    if json or html is None:
        text = report if note is None else Group(report, Text(note))
        show(report.to_dict() | {"stored": note}, text, as_json=json)
    finish(Status.OK if any(map(report.fits, report.sizes)) else Status.NO)


def _stored_as(fields: dict[str, Any], dtype: str | None) -> "CheckpointFormat | None":
    """How the projections are stored, where that is not the type that the model computes in."""
    from oproj_pass.explanation.quantization_config import (  # noqa: PLC0415
        DTYPES,
        CheckpointFormat,
        checkpoint_format,
    )

    if dtype is None:
        return checkpoint_format(fields)
    return CheckpointFormat([(("Linear",), DTYPES[dtype])]) if dtype in DTYPES else None
