"""What the plan in force names for single sizes: how one graph exchanges, and that all of them cut alike.

A graph is of the size whose rows it has. One whose number of rows is symbolic serves every size, so it cannot
follow a plan by which they differ: refused, rather than served in a way that nobody named.
"""

import logging
from collections.abc import Sequence

from oproj_pass.automatic_sizes import AUTO
from oproj_pass.backend.row_counts import row_count
from oproj_pass.capture import CapturePlan, SizeStrategy
from oproj_pass.capture.size_strategy import in_words
from oproj_pass.config import OProjConfig
from oproj_pass.errors import ConfigError
from oproj_pass.passes import Site
from oproj_pass.passes.strategies.grid import Grid

logger = logging.getLogger(__name__)


def rows_of_graph(sites: Sequence[Site]) -> int | None:
    """Rows of the step that a graph with these sites computes; None if a number of them is symbolic.

    The most that any site gets: a head may read fewer.
    """
    counts = [row_count(site) for site in sites]
    return max(counts) if all(isinstance(count, int) for count in counts) else None


def options_of_graph(sites: Sequence[Site], config: OProjConfig) -> OProjConfig:
    """The options, with ``reduce`` and ``chunks`` as the plan names them for the size of this graph.

    Raises ``ConfigError`` for a graph of every size where they differ by size.
    """
    plan = config.plan
    if plan is None or not plan.strategies:
        return config
    rows = rows_of_graph(sites)
    if rows is None:
        return _of_every_size(sites[0], plan, config)
    if rows not in plan.sizes:
        logger.info("a graph of %d rows is of no size of the plan, and exchanges as the options say", rows)
        return config
    found = _of_size(rows, plan, config)
    logger.info("size %d of the plan: reduce = %s, chunks = %s", rows, found.reduce, found.chunks)
    return found


def _of_size(size: int, plan: CapturePlan, config: OProjConfig) -> OProjConfig:
    named = plan.strategy_of(size).named
    return config.model_copy(update={name: named[name] for name in ("reduce", "chunks") if name in named})


def _of_every_size(site: Site, plan: CapturePlan, config: OProjConfig) -> OProjConfig:
    by_size = {size: _of_size(size, plan, config) for size in plan.sizes}
    ways = {size: SizeStrategy(reduce=of.reduce, chunks=of.chunks) for size, of in by_size.items()}
    if len(set(ways.values())) > 1:
        listed = "; ".join(f"size {size}: {way}" for size, way in ways.items())
        raise ConfigError(
            f"{site.path}: its number of rows is symbolic, so this graph is for every size, and the plan "
            f"names several ways for them ({listed}). Compile one graph a size: torch.compile(..., "
            "dynamic=False) and no dimension marked dynamic; or name one way for all sizes."
        )
    return by_size[plan.max_size]


def require_one_placement(site: Site, strategy: str, config: OProjConfig) -> None:
    """Raise ``ConfigError`` if a size of the plan names another placement for a projection than it has.

    ``strategy``: the name that the options give it, which sizes that name none take.
    """
    if config.plan is None or site.role != "oproj":
        return
    for _, named in config.plan.strategies:
        if named.strategy not in (None, strategy):
            _refuse(site, f"strategy {named.strategy!r}", f"{strategy!r}", "strategy", config.plan)
        if strategy in (Grid.name, AUTO) and named.grid not in (None, config.grid):
            _refuse(site, f"grid {named.grid}", f"{config.grid or 'any that fits'}", "grid", config.plan)


def _refuse(site: Site, named: str, elsewhere: str, option: str, plan: CapturePlan) -> None:
    naming = [size for size, way in plan.strategies if option in way.named]
    others = [size for size in plan.sizes if size not in naming]
    raise ConfigError(
        f"{site.path}: the plan places it by {named} at {in_words(naming)}, and by {elsewhere} "
        f"{f'at {in_words(others)}' if others else 'in a glob'}, which the option `{option}` or the default "
        f"says: one weight has one placement. Name one {option} for all sizes of the plan, or in the option "
        "alone; sizes may differ in `reduce` and `chunks`."
    )
