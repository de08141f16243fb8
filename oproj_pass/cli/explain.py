"""`oproj explain`: what sharding does to a Hugging Face model, from its config.json alone."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from oproj_pass.cli.hf_model import build_model, decode_step, model_errors
from oproj_pass.cli.output import Json, Status, finish, progress, show

EXAMPLE = "Example: oproj explain DeepSeek-V3/config.json --oproj-tensor-parallel-size 8"


def run(
    path: Annotated[
        Path, typer.Argument(exists=True, help="A config.json, or the model folder that holds it.")
    ],
    oproj_tensor_parallel_size: Annotated[
        int | None,
        typer.Option(min=2, help="Ranks that share a projection; by default 2, 4 and 8 are shown."),
    ] = None,
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"] | None,
        typer.Option(help="Of the weights; by default the config's own."),
    ] = None,
    include: Annotated[list[str] | None, typer.Option(help="Module-path glob to take; repeatable.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Module-path glob to leave; repeatable.")] = None,
    json: Json = False,
) -> None:
    """Show every attention of a model, what becomes of its output projection, and the bytes.

    Needs the extra `hf`, no weights and no network.

    Exit status: 0 the model can be sharded (over the given number of ranks), 1 it cannot, 2 bad input.
    """
    with progress(f"building {path}") as status:
        model = build_model(path, dtype)
        status.update(f"capturing {type(model).__name__}")
        from oproj_pass.explanation import explain  # noqa: PLC0415 - loads torch

        config = {
            "oproj_tensor_parallel_size": oproj_tensor_parallel_size or "auto",
            "include": include or (),
            "exclude": exclude or (),
        }
        with model_errors(path):
            report = explain(model, config=config, **decode_step())
    show(report.to_dict(), report, as_json=json)
    finish(Status.OK if any(map(report.fits, report.sizes)) else Status.NO)
