"""The table of strategies: how a site's work is shared among ranks. One file and one row each."""

from oproj_pass.passes.strategies.column import Column
from oproj_pass.passes.strategies.grid import Grid
from oproj_pass.passes.strategies.row import Row
from oproj_pass.passes.strategies.strategy import Strategy

STRATEGIES: dict[str, Strategy] = {"row": Row(), "column": Column(), "grid": Grid()}
"""The strategies by name."""

__all__ = ["STRATEGIES", "Strategy"]
