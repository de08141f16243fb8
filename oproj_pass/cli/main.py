"""The commands together, and how their errors are shown: one message on stderr, no traceback."""

import logging
from typing import Any

import typer
from typer.core import TyperGroup

from oproj_pass.cli import advise, check, demo, diff, explain, plan
from oproj_pass.cli.output import Status
from oproj_pass.errors import OProjError


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OProjError as error:
            typer.echo(f"oproj: {error}", err=True)
            raise typer.Exit(int(Status.BAD_INPUT)) from error


app = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
app.command("plan", epilog=plan.EXAMPLE)(plan.run)
app.command("check", epilog=check.EXAMPLE)(check.run)
app.command("explain", epilog=explain.EXAMPLE)(explain.run)
app.command("advise", epilog=advise.EXAMPLE)(advise.run)
app.command("diff", epilog=diff.EXAMPLE)(diff.run)
app.command("demo", epilog=demo.EXAMPLE)(demo.run)


@app.callback()
def oproj() -> None:
    """Shard attention output projections across data-parallel decode ranks: plan, check, explain, compare.

    Exit status: 0 yes, 1 no, 2 bad input, 3 yes with warnings. Each command's help says what it answers.
    """
    library = logging.getLogger("oproj_pass")
    if not library.handlers:  # what is logged is also printed: keep it off stderr
        library.addHandler(logging.NullHandler())
