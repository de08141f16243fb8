"""Options that the plan in force may name too: what it names for a size goes before the option.

``strategy`` and ``grid`` say where a weight lies, so they are one for all sizes and all graphs; ``reduce``
and ``chunks`` say how the rows of one graph travel, and each size may have its own.
"""

from collections.abc import Mapping
from typing import Any

from oproj_pass.capture import CapturePlan


def with_placement_of_plan(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with the strategy and the grid that every size of their plan names.

    Where some sizes name none, these take the option's: whether that is the same, each site decides.
    """
    plan = options.get("plan")
    if not isinstance(plan, CapturePlan):
        return dict(options)
    found, named = dict(options), [plan.strategy_of(size) for size in plan.sizes]
    if all(one.strategy for one in named):
        found["strategy"] = _of_projections(options.get("strategy"), named[0].strategy)
    if all(one.grid for one in named):
        found["grid"] = named[0].grid
    return found


def _of_projections(option: Any, name: str | None) -> Any:
    """The option with another name for the output projections, which a name alone is for."""
    return {**option, "oproj": name} if isinstance(option, Mapping) else name
