"""`oproj diff`: two graphs or more, or one model's graph before and after sharding."""

import json as json_
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oproj_pass.cli.gate import regressions
from oproj_pass.cli.hf_model import build_model, decode_step, model_errors
from oproj_pass.cli.output import Json, Status, finish, progress, write_page

if TYPE_CHECKING:
    from oproj_pass.passes.diff import GraphSnapshot
    from oproj_pass.passes.diff.cost import Timer

EXAMPLE = "Example: oproj diff --model Llama/config.json --html sharded.html"

_COLOURS = {"+": "green", "-": "red", ">": "yellow", "@": "cyan", "#": "bright_black"}


def run(
    snapshots: Annotated[
        list[Path] | None,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="Two saved graph snapshots, or all states of one graph, in order.",
            show_default=False,
        ),
    ] = None,
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
    """Compare graphs saved with snapshot(graph).save(path), or a model before and after sharding.

    More than two are shown side by side, each node followed through all of them.

    Exit status: 0 done, 1 the graphs differ (with --exit-code), or are worse than an accepted diff (with
    --check: a place is no longer changed, a collective appeared), 2 bad input.
    """
    if (len(snapshots or ()) < 2) if model is None else bool(snapshots):
        raise typer.BadParameter("give two snapshots or more, or --model alone")
    if check is not None and len(snapshots or ()) > 2:
        raise typer.BadParameter("--check judges one diff: give two snapshots, or --model")
    timer = None if machine is None else _timer(machine)
    states = _saved(snapshots or ()) if model is None else _rewritten(model, oproj_tensor_parallel_size)
    from oproj_pass.passes.diff import compare_states, diff_graphs  # noqa: PLC0415 - loads torch

    diff = (
        diff_graphs(*states.values(), timer=timer)
        if len(states) == 2
        else compare_states([*states.values()], [*states], timer=timer)
    )
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


def _timer(machine: str) -> "Timer":
    from oproj_pass.advisor.node_times import node_timer  # noqa: PLC0415 - loads torch
    from oproj_pass.advisor.profile import load_profile  # noqa: PLC0415

    return node_timer(load_profile(machine))


def _saved(paths: Sequence[Path]) -> "dict[str, GraphSnapshot]":
    """The graphs by their files' names."""
    from oproj_pass.passes.diff import GraphSnapshot  # noqa: PLC0415 - loads torch

    names = [path.stem for path in paths]
    return {
        name if names.count(name) == 1 else f"{number} {name}": GraphSnapshot.load(path)
        for number, (name, path) in enumerate(zip(names, paths, strict=True), 1)
    }


def _rewritten(path: Path, size: int) -> "dict[str, GraphSnapshot]":
    with progress(f"building {path}") as status:
        model = build_model(path, None)
        status.update(f"capturing {type(model).__name__}: a second or two a layer")
        from oproj_pass.explanation.rewrite import rewrite_graph  # noqa: PLC0415 - loads torch

        with model_errors(path):
            history = rewrite_graph(model, size=size, **decode_step())
    return {"before": history.state(0), "after": history.state(1)}
