"""What every command's parser refuses: an option given twice, of which the last would win in silence."""

from collections import Counter
from typing import Any

import typer
from typer.core import TyperCommand


class OneValueCommand(TyperCommand):
    """A command whose options take one value each, unless they are declared as repeatable."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an option that is given twice, and parse as usual."""
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for parameter, times in Counter(given).items():
            if times > 1 and not parameter.multiple:
                raise typer.BadParameter(f"{parameter.opts[0]} is given {times} times. Keep one.", ctx)
        return super().parse_args(ctx, args)
