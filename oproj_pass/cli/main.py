"""The commands together, and how their errors are shown: one message on stderr, no traceback."""

import atexit
import gc
import logging
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from oproj_pass.cli import advise, calibrate, check, demo, diff, doctor, explain, flight, plan
from oproj_pass.cli.command import OneValueCommand
from oproj_pass.cli.output import Status
from oproj_pass.errors import OProjError

_OBJECTS_BEFORE_COLLECTION = 1_000_000


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OProjError as error:
            typer.echo(f"oproj: {error}", err=True)
            raise typer.Exit(int(Status.BAD_INPUT)) from error


# plain help: rich's boxes cut the names of options at 80 columns
app = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
for module, kind, summary in (
    (plan, plan.PlanCommand, "Which decode step sizes to capture, and why."),
    (check, OneValueCommand, "Whether a deployment keeps every rule, and what to set."),
    (explain, OneValueCommand, "What sharding does to a model, from its config.json."),
    (advise, OneValueCommand, "Whether sharding is worth it on a machine, and over which N."),
    (calibrate, OneValueCommand, "Measure a machine's profile for advise, on torchrun's ranks."),
    (diff, OneValueCommand, "Compare graphs, or a model before and after sharding."),
    (doctor, OneValueCommand, "What this environment has, and what keeps it from working."),
    (flight, OneValueCommand, "Where the ranks of a hung step went apart."),
    (demo, OneValueCommand, "Real weights, sharded over four ranks of this machine."),
):
    name = module.__name__.rpartition(".")[2]
    app.command(name, cls=kind, epilog=module.EXAMPLE, short_help=summary)(module.run)


def _show_version(wanted: bool) -> None:
    if wanted:
        from oproj_pass import __version__  # noqa: PLC0415 - read from the installed distribution

        typer.echo(f"oproj_pass {__version__}")
        raise typer.Exit


@app.callback()
def oproj(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Shard attention output projections across data-parallel decode ranks: plan, check, explain, compare.

    Exit status: 0 yes, 1 no, 2 bad input, 3 yes with warnings. Each command's help says what it answers.
    """
    library = logging.getLogger("oproj_pass")
    if not library.handlers:  # what is logged is also printed: keep it off stderr
        library.addHandler(logging.NullHandler())


def main() -> None:
    """The command as a process of its own, which hardly looks for garbage: what it loads and traces lives on.

    That would take a tenth of the time while it runs, and up to a second on the way out.
    """
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)
    app(prog_name="oproj")
