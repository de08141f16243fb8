"""`oproj diff`: two graphs, or one model's graph before and after sharding."""

import json as json_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oproj_pass.cli.gate import regressions
from oproj_pass.cli.hf_model import build_model, decode_step, model_errors
from oproj_pass.cli.output import Json, Status, finish, progress, write_page

if TYPE_CHECKING:
    from oproj_pass.passes.diff import GraphDiff

EXAMPLE = "Example: oproj diff --model Llama/config.json --html sharded.html"

_COLOURS = {"+": "green", "-": "red", ">": "yellow", "@": "cyan", "#": "bright_black"}

_Snapshot = Annotated[
    Path | None,
    typer.Argument(exists=True, dir_okay=False, help="A saved graph snapshot.", show_default=False),
]


def run(
    before: _Snapshot = None,
    after: _Snapshot = None,
    model: Annotated[
        Path | None,
        typer.Option(
            exists=True, help="Compare this model's graph before and after sharding: a config.json."
        ),
    ] = None,
    oproj_tensor_parallel_size: Annotated[
        int, typer.Option(min=2, help="Ranks that share a projection, with --model.")
    ] = 8,
    html: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write one self-contained page instead of text.")
    ] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 where the graphs differ, as `git diff` does.")
    ] = False,
    machine: Annotated[
        str | None, typer.Option(help="Predict times on it: a profile, as for `oproj advise`.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="An accepted diff's JSON: fail on what is worse."),
    ] = None,
    json: Json = False,
) -> None:
    """Compare two graphs saved with snapshot(graph).save(path), or a model before and after sharding.

    Exit status: 0 done, 1 the graphs differ (with --exit-code), or are worse than an accepted diff (with
    --check: a place is no longer changed, a collective appeared), 2 bad input.
    """
    if (before is None or after is None) if model is None else (before is not None):
        raise typer.BadParameter("give two snapshots, or --model alone")
    diff = _of_snapshots(before, after) if model is None else _of_model(model, oproj_tensor_parallel_size)
    if machine is not None:
        diff = _timed(diff, machine)
    if html is not None:
        write_page(html, diff.to_html())
    if json:
        typer.echo(json_.dumps(diff.summary(), indent=2))
    elif html is None and check is None:
        _print(diff.to_text())
    worse = [] if check is None else regressions(check, diff.summary())
    for finding in worse:
        typer.echo(finding, err=True)
    finish(Status.NO if worse or (exit_code and diff.groups) else Status.OK)


def _print(text: str) -> None:
    """In colour on a terminal, as it is elsewhere."""
    for line in text.splitlines():
        is_header = line[:3] in ("---", "+++")
        typer.secho(line, bold=is_header or None, fg=None if is_header else _COLOURS.get(line[:1]))


def _timed(diff: "GraphDiff", machine: str) -> "GraphDiff":
    from oproj_pass.advisor.node_times import node_timer  # noqa: PLC0415 - loads torch
    from oproj_pass.advisor.profile import load_profile  # noqa: PLC0415
    from oproj_pass.passes.diff import diff_graphs  # noqa: PLC0415

    return diff_graphs(diff.before, diff.after, timer=node_timer(load_profile(machine)))


def _of_snapshots(before: Path | None, after: Path | None) -> "GraphDiff":
    from oproj_pass.passes.diff import GraphSnapshot, diff_graphs  # noqa: PLC0415 - loads torch

    assert before is not None
    assert after is not None
    return diff_graphs(GraphSnapshot.load(before), GraphSnapshot.load(after))


def _of_model(path: Path, size: int) -> "GraphDiff":
    with progress(f"building {path}") as status:
        model = build_model(path, None)
        status.update(f"capturing {type(model).__name__}: a second or two a layer")
        from oproj_pass.explanation.rewrite import rewrite_graph  # noqa: PLC0415 - loads torch

        with model_errors(path):
            return rewrite_graph(model, size=size, **decode_step()).diff(0, 1)
