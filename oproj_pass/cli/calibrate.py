"""`oproj calibrate`: a profile of the machine that torchrun's ranks are on, for `oproj advise`."""

import os
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import Progress

from oproj_pass.cli.output import Json, Status, finish, write_page
from oproj_pass.errors import ConfigError

EXAMPLE = "Example: torchrun --nproc-per-node 8 -m oproj_pass.cli calibrate mine.json"
_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}


def run(
    path: Annotated[Path, typer.Argument(dir_okay=False, help="The profile's file, written by rank 0.")],
    device: Annotated[
        Literal["cpu", "cuda", "npu"] | None,
        typer.Option(help="By default the accelerator, if there is one."),
    ] = None,
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"] | None,
        typer.Option(help="Of weights; bfloat16 by default, float32 on the CPU."),
    ] = None,
    json: Json = False,
) -> None:
    """Measure collectives and products on the ranks of torchrun, and write a profile for `oproj advise`.

    Takes a minute or two, and all ranks for itself.

    Exit status: 0 the profile is written, 2 bad input.
    """
    if "RANK" not in os.environ:
        raise ConfigError(
            "this is no rank of torchrun: torchrun --nproc-per-node 2 -m oproj_pass.cli calibrate mine.json"
        )
    import torch  # noqa: PLC0415 - slow to load, and not needed to refuse
    import torch.distributed as dist  # noqa: PLC0415

    from oproj_pass.advisor.calibrate import DEFAULT_GRID, calibrate  # noqa: PLC0415

    kind = device or _accelerator()
    place = _place(torch, kind)
    dist.init_process_group(_BACKENDS[kind])
    try:
        leads = dist.get_rank() == 0
        weights = getattr(torch, dtype or ("float32" if kind == "cpu" else "bfloat16"))
        with Progress(console=Console(stderr=True), disable=not leads) as progress:
            total = DEFAULT_GRID.num_measurements(dist.get_world_size())
            task = progress.add_task(f"calibrating {kind}", total=total)
            profile = calibrate(path.stem, place, weights, advance=lambda: progress.advance(task))
        if leads:
            text = profile.model_dump_json(indent=None if json else 2, exclude_none=True)
            write_page(path, text + "\n", f"oproj advise ... --machine {path}")
            if json:
                typer.echo(text)
    finally:
        dist.destroy_process_group()
    finish(Status.OK)


def _accelerator() -> str:
    import torch  # noqa: PLC0415

    found = torch.accelerator.current_accelerator()
    return "cpu" if found is None or found.type not in _BACKENDS else found.type


def _place(torch: Any, kind: str) -> Any:
    """This rank's device, made current."""
    if kind == "cpu":
        return torch.device("cpu")
    if kind == "npu":
        import_module("torch_npu")  # registers the device
    place = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0")))
    getattr(torch, kind).set_device(place)
    return place
