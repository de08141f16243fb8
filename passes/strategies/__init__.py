"""The table of strategies: how a site's work is shared among ranks. One file and one row each."""

from typing import Any

from oproj_pass.passes.strategies.column import Column
from oproj_pass.passes.strategies.column_row import ColumnRow
from oproj_pass.passes.strategies.grid import Grid
from oproj_pass.passes.strategies.group import Group
from oproj_pass.passes.strategies.row import Row
from oproj_pass.passes.strategies.strategy import Strategy
from oproj_pass.passes.strategies.vocabulary import Vocabulary

STRATEGIES: dict[str, Strategy[Any]] = {
    strategy.name: strategy for strategy in (Row(), Column(), Grid(), Group(), ColumnRow(), Vocabulary())
}
"""The strategies by name."""

__all__ = ["STRATEGIES", "Strategy"]
