"""The commands together, and how their errors are shown: one message on stderr, no traceback."""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from oproj_pass import __version__
from oproj_pass.cli import advise, calibrate, check, demo, diff, doctor, explain, flight, plan
from oproj_pass.cli.command import OneValueCommand
from oproj_pass.cli.output import Status
from oproj_pass.errors import OProjError

_OBJECTS_BEFORE_COLLECTION = 100_000


@contextmanager
def _rarely_collected() -> Iterator[None]:
    """Loading and tracing make objects that live on; looking for dead ones among them takes a tenth of it."""
    thresholds = gc.get_threshold()
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            with _rarely_collected():
                return super().invoke(ctx)
        except OProjError as error:
            typer.echo(f"oproj: {error}", err=True)
            raise typer.Exit(int(Status.BAD_INPUT)) from error


# plain help: rich's boxes cut the names of options at 80 columns
app = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command("plan", cls=plan.PlanCommand, epilog=plan.EXAMPLE)(plan.run)
app.command("check", cls=OneValueCommand, epilog=check.EXAMPLE)(check.run)
app.command("explain", cls=OneValueCommand, epilog=explain.EXAMPLE)(explain.run)
app.command("advise", cls=OneValueCommand, epilog=advise.EXAMPLE)(advise.run)
app.command("calibrate", cls=OneValueCommand, epilog=calibrate.EXAMPLE)(calibrate.run)
app.command("diff", cls=OneValueCommand, epilog=diff.EXAMPLE)(diff.run)
app.command("doctor", cls=OneValueCommand, epilog=doctor.EXAMPLE)(doctor.run)
app.command("flight", cls=OneValueCommand, epilog=flight.EXAMPLE)(flight.run)
app.command("demo", cls=OneValueCommand, epilog=demo.EXAMPLE)(demo.run)


def _show_version(wanted: bool) -> None:
    if wanted:
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
