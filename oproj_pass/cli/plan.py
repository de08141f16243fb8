"""`oproj plan`: which decode step sizes to capture, each with its reason.

The scheduler's limits come from options, from a deployment file, or from both; an option wins over the file.
"""

import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from rich.console import Group
from rich.text import Text

from oproj_pass.cli.command import OneValueCommand
from oproj_pass.cli.output import Json, Status, finish, show
from oproj_pass.cli.source import Source, read_deployment
from oproj_pass.deployment.files import read_mapping
from oproj_pass.deployment.numbers import whole_number
from oproj_pass.errors import ConfigError

if TYPE_CHECKING:
    from oproj_pass.capture import CapturePlan

EXAMPLE = "Example: oproj plan --max-num-seqs 24 --max-num-batched-tokens 8192 --num-speculative-tokens 1"


class PlanCommand(OneValueCommand):
    """Takes the sizes as it prints them, and as `vllm serve` does: with spaces between them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Join the numbers that follow ``--cudagraph-capture-sizes``."""
        if (option := "--cudagraph-capture-sizes") in args:
            first = args.index(option) + 1
            sizes = list(takewhile(lambda text: text.strip(",").isdigit(), args[first:]))
            args = [*args[:first], *([" ".join(sizes)] if sizes else []), *args[first + len(sizes) :]]
        return super().parse_args(ctx, args)


def parse_sizes(text: str) -> list[int]:
    """Sizes such as `1,2,4`."""
    try:
        return [int(size) for size in re.split(r"[,\s]+", text.strip())]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of sizes such as 1 2 4 8") from None


def _whole_number(text: str | int) -> int:
    try:
        return int(whole_number(text))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number, such as 8192, 8k or 8K") from None


def _count(help_: str) -> Any:
    return typer.Option(help=help_, parser=_whole_number, metavar="<int>")


def run(
    deployment: Source = None,
    max_num_seqs: Annotated[int | None, _count("Most requests in one step, R.")] = None,
    max_num_batched_tokens: Annotated[int | None, _count("Most tokens in one step, T; 8k is 8000.")] = None,
    num_speculative_tokens: Annotated[
        int | None, typer.Option(help="Draft tokens a request and step.")
    ] = None,
    speculative_depths: Annotated[
        str | None, typer.Option(metavar="0,1,3", help="Depths of a step, where speculation changes it.")
    ] = None,
    max_cudagraph_capture_size: Annotated[
        int | None, typer.Option(help="Ceiling of the captured sizes.")
    ] = None,
    cudagraph_capture_sizes: Annotated[
        str | None, typer.Option(metavar="1 2 4 ...", help="Capture these instead of the default grid.")
    ] = None,
    platform: Annotated[
        Literal["npu", "cuda"] | None, typer.Option(help="Whose defaults apply and are compared with.")
    ] = None,
    budget: Annotated[int | None, typer.Option(help="Most graphs that the device can hold.")] = None,
    histogram: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Observed step sizes: JSON, or one size a line."),
    ] = None,
    strategies: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="How to write single sizes: what `oproj advise --json` printed."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Plan the decode step sizes to capture, and say why each is there.

    A file that holds what --json printed is shown again.

    Exit status: 0 every possible decode step has a captured size, 3 some would run eager, 2 bad input.
    """
    from oproj_pass.capture import StepBound, load_histogram, plan_capture  # noqa: PLC0415
    from oproj_pass.capture.platforms import platform_of  # noqa: PLC0415

    named = None if strategies is None else _strategies(strategies)
    if (saved := _saved_plan(deployment or ())) is not None:
        _finish(saved if named is None else saved.with_strategies(named), json)
    options: dict[str, Any] = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "num_speculative_tokens": num_speculative_tokens,
        "max_cudagraph_capture_size": max_cudagraph_capture_size,
        "cudagraph_capture_sizes": parse_sizes(cudagraph_capture_sizes) if cudagraph_capture_sizes else None,
        "device_type": platform,
    }
    given = {name: value for name, value in options.items() if value is not None}
    settings = _settings(deployment or (), given)
    plan = plan_capture(
        StepBound(
            settings["max_num_seqs"],
            settings["max_num_batched_tokens"],
            settings.get("num_speculative_tokens", 0),
            tuple(parse_sizes(speculative_depths)) if speculative_depths else (),
        ),
        sizes=settings.get("cudagraph_capture_sizes"),
        max_size=settings.get("max_cudagraph_capture_size"),
        budget=budget,
        histogram=None if histogram is None else load_histogram(histogram),
        platform=platform_of(settings.get("device_type", "npu")),
        strategies=named,
    )
    _finish(plan, json)


def _saved_plan(source: Sequence[str]) -> "CapturePlan | None":
    """The plan that `--json` printed into a file, if the argument is one."""
    if len(source) != 1 or not source[0].endswith(".json"):
        return None
    from oproj_pass.capture import CapturePlan  # noqa: PLC0415

    fields = read_mapping(Path(source[0]))
    return CapturePlan.from_dict(fields) if {"bound", "sizes"} <= fields.keys() else None


def _strategies(path: Path) -> dict[Any, Any]:
    """Options by size: of an answer of `oproj advise`, or of a file that holds nothing else."""
    fields = read_mapping(path)
    if "recommendation" not in fields:
        return fields
    if named := fields["recommendation"].get("strategies"):
        return dict(named)
    raise ConfigError(f"{path} recommends no sharding, and so no strategies: leave --strategies out")


def _finish(plan: "CapturePlan", json: bool) -> NoReturn:
    show(plan.to_dict(), _text(plan), as_json=json)
    finish(Status.OK if plan.covers else Status.WARNING)


def _settings(deployment: Sequence[str], options: dict[str, Any]) -> dict[str, Any]:
    if deployment:
        return read_deployment(deployment).model_dump() | options
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        if name not in options:
            raise ConfigError(f"--{name.replace('_', '-')} is missing: give it, or a deployment file")
    return options


def _text(plan: "CapturePlan") -> Group:
    lines = [Text(line) for line in plan.explain()]
    if plan.warning:
        lines[1].stylize("yellow")
    sizes = " ".join(map(str, plan.sizes))
    return Group(*lines, Text(f"for vLLM: --cudagraph-capture-sizes {sizes}"))
